"""Fault campaigns: seeded rounds of hostile use, short in the test suite and long under `make soak`.

    python -m tests.campaigns.campaigns                       every campaign, two minutes each
    python -m tests.campaigns.campaigns kills crowd --minutes 15 --seed 7

A round is one seed. It says how many things were acknowledged to callers and how many of these were found afterwards;
what it finds wrong stands in `faults`. The first line of a campaign's output names its first seed; a round that fails
names its own, and `--seed N --rounds 1` repeats it.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

CAMPAIGNS = {
    "kills": "tests.campaigns.campaign_kills:kills",
    "clocks": "tests.campaigns.campaign_kills:clocks",
    "late-results": "tests.campaigns.campaign_late_results:late_results",
    "deliveries": "tests.campaigns.campaign_deliveries:deliveries",
    "bucket-deliveries": "tests.campaigns.campaign_deliveries:bucket_deliveries",
    "shared-deliveries": "tests.campaigns.campaign_deliveries:shared_deliveries",
    "steps": "tests.campaigns.campaign_steps:steps",
    "work": "tests.campaigns.campaign_work:work",
    "subagents": "tests.campaigns.campaign_subagents:subagents",
    "subagent-deaths": "tests.campaigns.campaign_subagents:deaths",
    "code": "tests.campaigns.campaign_code:code",
    "disks": "tests.campaigns.campaign_disks:disks",
    "lacks": "tests.campaigns.campaign_disks:lacks",
    "volumes": "tests.campaigns.campaign_disks:volumes",
    "bombs": "tests.campaigns.campaign_bombs:bombs",
    "hostile-pages": "tests.campaigns.campaign_pages:pages",
    "hostile-texts": "tests.campaigns.campaign_texts:hostile_texts",
    "histories": "tests.campaigns.campaign_histories:histories",
    "first-commits": "tests.campaigns.campaign_first_commits:first_commits",
    "changed-trees": "tests.campaigns.campaign_changed_trees:changed_trees",
    "forks": "tests.campaigns.campaign_forks:forks",
    "handovers": "tests.campaigns.campaign_handovers:handovers",
    "servers": "tests.campaigns.campaign_servers:servers",
    "cluster-kills": "tests.campaigns.campaign_cluster:kills",
    "cluster-freezes": "tests.campaigns.campaign_cluster:freezes",
    "cluster-deploys": "tests.campaigns.campaign_cluster:deploys",
    "cluster-restarts": "tests.campaigns.campaign_cluster:restarts",
    "cluster-cuts": "tests.campaigns.campaign_cuts:cuts",
    "hostile-servers": "tests.campaigns.campaign_hostile_servers:hostile_servers",
    "database-weather": "tests.campaigns.campaign_weather:weather",
    "object-weather": "tests.campaigns.campaign_object_weather:object_weather",
    "bucket-deaths": "tests.campaigns.campaign_bucket_deaths:bucket_deaths",
    "served-restarts": "tests.campaigns.campaign_served:restarts",
    "workers": "tests.campaigns.campaign_workers:workers",
    "hostile-queues": "tests.campaigns.campaign_queues:hostile_queues",
    "vanishing-clients": "tests.campaigns.campaign_vanishing:vanishing_clients",
    "old-answers": "tests.campaigns.campaign_old_answers:old_answers",
    "steering": "tests.campaigns.campaign_steering:steering",
    "hostile-keys": "tests.campaigns.campaign_keys:hostile_keys",
    "hostile-peers": "tests.campaigns.campaign_hostile_peers:hostile_peers",
    "doors": "tests.campaigns.campaign_doors:doors",
    "stalled-readers": "tests.campaigns.campaign_readers:stalled_readers",
    "tenants": "tests.campaigns.campaign_tenants:tenants",
    "endings": "tests.campaigns.campaign_endings:endings",
    "crowd": "tests.campaigns.campaign_crowd:crowd",
    "soak": "tests.campaigns.campaign_crowd:soak",
}
"""Where the function of each is. It takes a generator, a folder that is there, and how many seconds to spend."""


@dataclass
class Report:
    """What a round, or several, have led to."""

    acknowledged: int = 0
    found: int = 0
    counts: Counter[str] = field(default_factory=Counter[str])
    """What was done, by name."""
    faults: list[str] = field(default_factory=list[str])

    def add(self, other: Report) -> None:
        """Count the other one in."""
        self.acknowledged += other.acknowledged
        self.found += other.found
        self.counts += other.counts
        self.faults += other.faults

    def check(self, holds: object, fault: str) -> None:
        """Note the fault unless it holds."""
        if not holds:
            self.faults.append(fault)

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))
        return f"acknowledged {self.acknowledged}, found {self.found}" + (f" ({counts})" if counts else "")


Campaign = Callable[[random.Random, Path, float], Report]


def campaign(name: str) -> Campaign:
    """The function of that name."""
    module, _, function = CAMPAIGNS[name].partition(":")
    return cast("Campaign", getattr(importlib.import_module(module), function))


def run_round(name: str, seed: int, seconds: float) -> Report:
    """One seed, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix=f"campaign-{name}-") as folder:
        return campaign(name)(random.Random(seed), Path(folder), seconds)


def run(name: str, seed: int, seconds: float, rounds: int) -> bool:
    """Rounds until the time is over. Whether nothing was wrong."""
    total, done, end = Report(), 0, time.monotonic() + seconds
    print(f"{name}: first seed {seed}", flush=True)
    while done < rounds and (not done or time.monotonic() < end):
        report = run_round(name, seed + done, max(end - time.monotonic(), 1.0))
        for fault in report.faults:
            print(f"{name}: seed {seed + done}: {fault}", flush=True)
        total.add(report)
        done += 1
    print(f"{name}: {done} rounds, {total}, {len(total.faults)} faults", flush=True)
    return not total.faults


def main() -> int:
    """The exit code: 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CAMPAIGN", help=f"of {', '.join(CAMPAIGNS)} (default: all)")
    parser.add_argument("--except", dest="left_out", action="append", default=[], metavar="CAMPAIGN")
    parser.add_argument("--minutes", type=float, default=2.0, help="for each campaign (default: 2)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="at most so many, of each campaign")
    options = parser.parse_args()
    unknown = sorted({*options.names, *options.left_out} - CAMPAIGNS.keys())
    if unknown:
        parser.error(f"there is no campaign {', '.join(unknown)}")
    os.environ.update(AWS_ACCESS_KEY_ID="AKIDEXAMPLE", AWS_SECRET_ACCESS_KEY="wJalrXUtnFEMI")  # for buckets on loopback
    names = [name for name in options.names or CAMPAIGNS if name not in options.left_out]
    good = [run(name, options.seed, 60 * options.minutes, options.rounds) for name in names]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
