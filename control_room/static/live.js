// Parts of the page that event streams update: <div data-live="ADDRESS">. A hidden tab receives nothing.
"use strict";
(() => {
  const stale = document.getElementById("stale");
  const parts = [...document.querySelectorAll("[data-live]")].map((place) => ({ place, source: null }));

  function put(place, html) {
    const on = document.activeElement, inside = place.contains(on);
    const scrolled = [...place.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    const made = document.createElement("template");
    made.innerHTML = html; // escaped by our templates
    settle(place, made.content);
    [...place.querySelectorAll(".scroll")].forEach((one, at) => { one.scrollLeft = scrolled[at] || 0; });
    if (inside) again(place, on)?.focus({ preventScroll: true });
  }

  // Replace only changed nodes, so that the browser draws nothing else again.
  function settle(old, fresh) {
    const before = [...old.childNodes], after = [...fresh.childNodes];
    if (before.length !== after.length) return old.replaceChildren(...after);
    before.forEach((one, at) => {
      const other = after[at];
      if (one.isEqualNode(other)) return;
      const alike = one.nodeType === 1 && other.nodeType === 1 && one.cloneNode().isEqualNode(other.cloneNode());
      if (alike && one.childNodes.length) settle(one, other);
      else one.replaceWith(other);
    });
  }

  // Return the element that had the focus, so that a key press cannot hit another button.
  function again(place, on) {
    if (on.id) return document.getElementById(on.id);
    const same = (one) => one.href ? one.href === on.href : (one.form ?? one).outerHTML === (on.form ?? on).outerHTML;
    return [...place.querySelectorAll(on.tagName)].find(same);
  }

  function open(part) {
    if (part.source) return;
    const source = part.source = new EventSource(part.place.dataset.live);
    source.addEventListener("part", (event) => {
      stale.hidden = true;
      put(part.place, event.data);
      part.place.dispatchEvent(new Event("part"));
    });
    source.addEventListener("signed-out", () => { // the session has ended
      source.close();
      location.reload();
    });
    source.addEventListener("open", () => { stale.hidden = true; });
    source.addEventListener("error", () => {
      stale.hidden = false;
      if (source.readyState === EventSource.CLOSED) { // refused: the session may have ended
        part.source = null;
        setTimeout(() => { if (!document.hidden) open(part); }, 5000);
      }
    });
  }

  function close(part) {
    part.source?.close();
    part.source = null;
  }

  document.addEventListener("visibilitychange", () => parts.forEach(document.hidden ? close : open));
  window.addEventListener("pagehide", () => parts.forEach(close));
  if (!document.hidden) parts.forEach(open);
})();
