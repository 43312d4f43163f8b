"""Sessions in the documented layout over any objects, as a bucket keeps them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from repertory.backends.ports import ObjectStore
from repertory.backends.sessions.documents.bucket_store import BucketSessionStore
from repertory.backends.sessions.documents.reading import BESIDE_TREE
from repertory.backends.sessions.journal.store import ObjectSessionStore
from repertory.backends.sessions.liveness import Liveness, TimeToLive
from repertory.core.journal.restore import Entropy


def bucket_store(
    objects: ObjectStore,
    owner: str,
    *,
    life: Liveness | None = None,
    wall: Callable[[], float] = time.time,
    entropy: Entropy = os.urandom,
) -> BucketSessionStore:
    """A store as `S3SessionManager` has it. A lease lives for 10 s unless `life` says something else."""
    journals = ObjectSessionStore(objects, owner=owner, life=life or TimeToLive(wall, 10.0), layout=BESIDE_TREE)
    return BucketSessionStore(journals, objects, wall=wall, entropy=entropy)
