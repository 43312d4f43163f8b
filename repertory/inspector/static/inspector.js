// Live updates and keys. The pages work without this file.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");

  // Live parts: the server says which parts have changed, as HTML that it has escaped.
  const live = document.body.dataset.live;
  const pulse = document.querySelector("[data-pulse]");
  const say = (text, on) => {
    if (pulse && (pulse.textContent !== text || pulse.classList.contains("on") !== on)) {
      pulse.textContent = text;
      pulse.classList.toggle("on", on);
    }
  };
  const replace = (id, html) => {
    const part = document.getElementById(`part-${id}`);
    if (!part) return;
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const all = focused ? [...part.querySelectorAll(focused.tagName)] : [];
    const address = focused && focused.getAttribute("href");
    const open = new Set([...part.querySelectorAll("details[open][id]")].map((each) => each.id));
    const table = part.querySelector(".table");
    const left = table ? table.scrollLeft : 0;
    part.innerHTML = html;
    for (const each of part.querySelectorAll("details[id]")) each.open = open.has(each.id);
    if (table && part.querySelector(".table")) part.querySelector(".table").scrollLeft = left;
    if (focused) {
      const now = [...part.querySelectorAll(focused.tagName)];
      const same = now.find((each) => address && each.getAttribute("href") === address) || now[all.indexOf(focused)];
      if (same) {
        if (!same.matches("a, button, input, summary, [tabindex]")) same.tabIndex = -1;
        same.focus({ preventScroll: true });
      }
    }
  };
  if (live && "EventSource" in window) {
    let source = null;
    let ended = false;
    const begin = () => {
      if (source || ended || document.hidden) return;
      source = new EventSource(live);
      source.addEventListener("open", () => say("live", true));
      source.addEventListener("parts", (event) => {
        say("live", true);
        for (const [id, html] of Object.entries(JSON.parse(event.data))) replace(id, html);
      });
      source.addEventListener("over", () => finish("it has stopped"));
      source.addEventListener("refused", (event) => finish(JSON.parse(event.data).error));
      source.addEventListener("error", () => {
        if (source && source.readyState === EventSource.CLOSED) finish("no longer live: load the page again");
        else later();
      });
    };
    let waiting = 0;
    const later = () => {
      clearTimeout(waiting);
      // The server ends a connection now and then, and the browser opens another one: that is not worth a word.
      waiting = setTimeout(() => source && source.readyState !== EventSource.OPEN && say("connecting", false), 2500);
    };
    const stop = () => {
      if (source) source.close();
      source = null;
    };
    const finish = (text) => {
      ended = true;
      stop();
      say(text, false);
    };
    document.addEventListener("visibilitychange", () => (document.hidden ? stop() : begin()));
    window.addEventListener("pagehide", stop);
    begin();
  }

  // Keys: / finds, j and k move, Enter opens, n and p turn pages.
  const items = () => [...document.querySelectorAll("[data-item]")];
  const move = (by) => {
    const all = items();
    if (!all.length) return;
    const at = all.indexOf(document.activeElement && document.activeElement.closest("[data-item]"));
    const next = all[Math.min(Math.max(at + by, 0), all.length - 1)];
    if (!next.hasAttribute("tabindex")) next.tabIndex = -1;
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  };
  const follow = (selector) => {
    const link = document.querySelector(selector);
    if (link) link.click();
    return Boolean(link);
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    const typing = event.target.matches("input, textarea, select");
    if (typing) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    let done = true;
    if (event.key === "/") {
      const field = document.querySelector("[data-search]");
      if (field) { field.focus(); field.select(); }
    } else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
    else if (event.key === "n") done = follow('[rel="next"]');
    else if (event.key === "p") done = follow('[rel="prev"]');
    else if (event.key === "Enter" && event.target.matches("[data-item]")) {
      const inside = event.target.querySelector(".tool > summary, .more > summary") || event.target.querySelector("a.id, a");
      if (inside) inside.click();
    } else done = false;
    if (done) event.preventDefault();
  });
})();
