// All hosts as tiles on strips. Only visible strips have a canvas.
"use strict";
(() => {
  const SIZES = [[9, 9], [15, 15], [26, 20], [52, 24], [118, 26]]; // of a tile; the last has room for a name
  const GAP = 1, HEAD = 24, EDGE = 8, STRIP = 128, EVERY = 5000, USUAL = 1;
  const get = (id) => document.getElementById(id);
  const [box, space, mark, about, problem, state] =
    ["heat", "heat-space", "heat-mark", "heat-about", "heat-problem", "heat-state"].map(get);
  const [klass, flavor, find, size, form, total] =
    ["heat-class", "heat-flavor", "heat-find", "heat-size", "heat-form", "heat-count"].map(get);
  const strips = new Map(); // number → canvas
  let data = null, rows = [], places = [], at = -1, colours = {}, closed = new Set();
  let reading = false, again = false, pending = false, chosen = false, drawnFor = "";

  function readColours() {
    const drawn = getComputedStyle(mark);
    for (const name of ["f0", "f1", "f2", "f3", "f4", "f5", "bar", "track", "ink"]) {
      mark.style.color = `var(--${name})`;
      colours[name] = drawn.color;
    }
    mark.style.color = "";
  }

  const across = (wide) => Math.max(1, Math.floor((box.clientWidth - 2 * EDGE) / (wide + GAP)));

  // Return the largest size with which all hosts are visible, or the usual size.
  function fitting() {
    const groups = new Map();
    for (const group of data.group) groups.set(group, (groups.get(group) ?? 0) + 1);
    const available = parseFloat(getComputedStyle(box).maxHeight);
    for (let one = SIZES.length - 1; one > USUAL; one--) {
      const [wide, high] = SIZES[one];
      let height = 2 * EDGE;
      for (const count of groups.values()) height += HEAD + Math.ceil(count / across(wide)) * (high + GAP);
      if (height <= available) return one;
    }
    return USUAL;
  }

  // Compute the position of each host: groups with a heading and rows of tiles.
  function lay() {
    if (!data) return;
    if (!chosen) size.value = fitting();
    const [wide, high] = SIZES[size.value], most = across(wide);
    rows = []; places = new Array(data.name.length);
    let y = 4, group = -1, row = null;
    for (let host = 0; host < data.name.length; host++) {
      if (data.group[host] !== group) {
        if (row) y += high + GAP;
        group = data.group[host];
        rows.push({ y, head: group, first: host, count: 0 });
        y += HEAD; row = null;
      }
      if (!row || row.count === most) {
        if (row) y += high + GAP;
        row = { y, first: host, count: 0 };
        rows.push(row);
      }
      places[host] = [EDGE + row.count * (wide + GAP), y];
      row.count++;
    }
    space.style.height = (data.name.length ? y + high + EDGE : 0) + "px";
    paint();
  }

  function paint() {
    for (const strip of strips.values()) strip.remove();
    strips.clear();
    show();
  }

  function show() { // visible strips and their neighbours
    if (pending) return;
    pending = true;
    requestAnimationFrame(showNow);
  }

  function showNow() {
    pending = false;
    if (!data) return;
    const top = box.scrollTop, height = box.clientHeight;
    const first = Math.max(0, Math.floor((top - STRIP / 2) / STRIP));
    const last = Math.min(Math.floor((top + height + STRIP / 2) / STRIP), Math.floor(parseFloat(space.style.height) / STRIP));
    for (const [number, strip] of strips) {
      if (number < first || number > last) { strip.remove(); strips.delete(number); }
    }
    for (let number = first; number <= last; number++) if (!strips.has(number)) strips.set(number, made(number));
    markNow();
  }

  function made(number) {
    const strip = document.createElement("canvas"), ratio = window.devicePixelRatio || 1;
    strip.width = Math.round(box.clientWidth * ratio); strip.height = Math.round(STRIP * ratio);
    strip.style.width = box.clientWidth + "px"; strip.style.height = STRIP + "px";
    strip.style.top = number * STRIP + "px";
    const draw = strip.getContext("2d");
    draw.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw.translate(0, -number * STRIP);
    const high = SIZES[size.value][1], hosts = [];
    let from = below(number * STRIP - Math.max(high, HEAD));
    for (; from < rows.length && rows[from].y < (number + 1) * STRIP; from++) {
      const row = rows[from];
      if (row.head !== undefined) heading(draw, row);
      for (let host = row.first; host < row.first + row.count; host++) hosts.push(host);
    }
    tiles(draw, hosts);
    space.append(strip);
    return strip;
  }

  function below(y) { // the first row at y or lower
    let low = 0, high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows[middle].y < y) low = middle + 1; else high = middle;
    }
    return low;
  }

  function heading(draw, row) {
    const [cell, zone] = data.groups[row.head];
    draw.fillStyle = colours.ink; draw.font = "600 13px system-ui, sans-serif"; draw.textBaseline = "middle";
    draw.fillText("cell " + cell + (zone ? " · zone " + zone : ""), EDGE, row.y + HEAD / 2);
  }

  function fitsClass(host) {
    if (closed.has(host)) return "f5";
    const fits = data.fits[host];
    return fits < 1 ? "f0" : fits < 2 ? "f1" : fits < 4 ? "f2" : fits < 8 ? "f3" : "f4";
  }

  // Tiles are drawn by colour: changing it costs more than a tile.
  function tiles(draw, hosts) {
    const [wide, high] = SIZES[size.value], named = size.value === String(SIZES.length - 1), half = Math.floor(wide * 0.4);
    const capacity = data.capacity[klass.value] || [], used = data.used[klass.value] || [];
    const share = (host) => capacity[host] ? Math.min(1, used[host] / capacity[host]) : 0;
    const wanted = find.value.trim().toLowerCase(), shades = [[1, hosts]];
    if (wanted) {
      shades[0][1] = hosts.filter((host) => isWanted(host, wanted));
      shades.push([0.15, hosts.filter((host) => !isWanted(host, wanted))]);
    }
    for (const [shade, some] of shades) {
      draw.globalAlpha = shade;
      for (const [fit, these] of grouped(some, fitsClass)) {
        draw.fillStyle = colours[fit];
        for (const host of these) {
          const [x, y] = places[host];
          named ? draw.fillRect(x, y, 6, high) : draw.fillRect(x + half, y, wide - half, high);
        }
      }
      draw.fillStyle = colours.track;
      for (const host of some) {
        const [x, y] = places[host]; // below the name
        named ? draw.fillRect(x + 8, y + high - 5, wide - 8, 5) : draw.fillRect(x, y, half, high);
      }
      draw.fillStyle = colours.bar;
      for (const host of some) {
        const [x, y] = places[host], held = share(host);
        if (held) named ? draw.fillRect(x + 8, y + high - 5, (wide - 8) * held, 5) : draw.fillRect(x, y + high * (1 - held), half, high * held);
      }
      if (!named) continue;
      draw.fillStyle = colours.ink; draw.font = "12px system-ui, sans-serif"; draw.textBaseline = "middle";
      for (const host of some) draw.fillText(clipped(draw, data.name[host], wide - 12), places[host][0] + 9, places[host][1] + (high - 5) / 2);
    }
    draw.globalAlpha = 1;
  }

  function grouped(hosts, key) {
    const groups = new Map();
    for (const host of hosts) {
      const group = key(host);
      if (!groups.has(group)) groups.set(group, []);
      groups.get(group).push(host);
    }
    return groups;
  }

  const isWanted = (host, wanted) => data.name[host].toLowerCase().includes(wanted) || data.root[host].startsWith(wanted);

  function repaint(hosts) {
    const [wide, high] = SIZES[size.value], byStrip = new Map();
    for (const host of hosts) {
      const y = places[host][1];
      for (const number of new Set([Math.floor(y / STRIP), Math.floor((y + high) / STRIP)])) {
        if (!strips.has(number)) continue;
        if (!byStrip.has(number)) byStrip.set(number, []);
        byStrip.get(number).push(host);
      }
    }
    for (const [number, some] of byStrip) {
      const draw = strips.get(number).getContext("2d");
      for (const host of some) draw.clearRect(places[host][0], places[host][1], wide, high);
      tiles(draw, some);
    }
  }

  function clipped(draw, name, width) {
    if (draw.measureText(name).width <= width) return name;
    let end = name.length; // host names differ at the end
    while (end > 1 && draw.measureText("…" + name.slice(-end)).width > width) end--;
    return "…" + name.slice(-end);
  }

  function markNow() {
    mark.hidden = at < 0 || at >= places.length;
    if (mark.hidden) return;
    const [wide, high] = SIZES[size.value], [x, y] = places[at];
    Object.assign(mark.style, { left: x + "px", top: y + "px", width: wide + "px", height: high + "px" });
  }

  function describe(host) {
    if (host === at && host >= 0) return;
    at = host;
    markNow();
    if (host < 0 || !data) { about.textContent = "Point at a host to read its name."; return; }
    const [cell, zone] = data.groups[data.group[host]];
    const held = data.classes.filter((one) => data.capacity[one][host])
      .map((one) => one + " " + data.used[one][host] + " of " + data.capacity[one][host]);
    const fits = closed.has(host) ? "closed to new instances" : data.fits[host] + " more fit";
    about.replaceChildren(link(host), " cell " + cell + (zone ? ", zone " + zone : "") + " · " + fits + " · held: " +
      (held.join(", ") || "nothing is there"));
  }

  function link(host) {
    const name = document.createElement("a");
    name.href = "/hosts/" + data.root[host];
    name.textContent = data.name[host];
    return name;
  }

  function under(event) {
    if (!data) return -1;
    const edge = box.getBoundingClientRect(), [wide, high] = SIZES[size.value];
    const x = event.clientX - edge.left - box.clientLeft, y = event.clientY - edge.top - box.clientTop + box.scrollTop;
    const row = rows[below(y + 0.5) - 1];
    if (!row || row.head !== undefined || y >= row.y + high + GAP) return -1;
    const column = Math.floor((x - EDGE) / (wide + GAP));
    return column >= 0 && column < row.count ? row.first + column : -1;
  }

  function move(key) {
    const most = across(SIZES[size.value][0]);
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: most, ArrowUp: -most, Home: -1e9, End: 1e9 }[key];
    if (!by || !data || !data.name.length) return false;
    const host = Math.min(data.name.length - 1, Math.max(0, at < 0 ? (by > 0 ? 0 : data.name.length - 1) : at + by));
    const y = places[host][1], high = SIZES[size.value][1];
    if (y < box.scrollTop + HEAD) box.scrollTop = y - HEAD - 8;
    if (y + high > box.scrollTop + box.clientHeight) box.scrollTop = y + high + 8 - box.clientHeight;
    describe(host);
    return true;
  }

  function report(text) { problem.textContent = text; problem.hidden = !text; }

  // One request at a time; a change in the meantime causes another one.
  async function read() {
    if (reading) { again = true; return; }
    reading = true;
    const wanted = flavor.value;
    const query = new URLSearchParams({ flavor: wanted });
    if (data && data.asked === wanted) { query.set("layout", data.layout); query.set("since", data.number); }
    try {
      const response = await fetch("/hosts.json?" + query);
      if (response.status === 401 || response.status === 403) { report("Your session has ended: load the page again to sign in."); return; }
      const answer = await response.json();
      report(answer.problem || "");
      if (!answer.problem) take(answer, wanted);
      else if (!data) state.textContent = "No hosts are known yet.";
    } catch { report("The control room is unreachable; the page is out of date. Retrying …"); }
    finally {
      reading = false;
      if (again) { again = false; read(); }
    }
  }

  function take(answer, wanted) {
    const whole = !answer.at;
    let moved = answer.at ?? [];
    if (whole) {
      const before = klass.value;
      data = { ...answer, asked: wanted };
      klass.replaceChildren(...answer.classes.map((one) => new Option(one, one, false, one === before)));
      at = -1;
    } else {
      answer.at.forEach((host, place) => {
        for (const one of data.classes) data.used[one][host] = answer.used[one][place];
        data.fits[host] = answer.fits[place];
      });
      data.number = answer.number;
    }
    if (answer.closed) {
      const now = new Set(answer.closed);
      moved = [...new Set([...moved, ...[...now].filter((one) => !closed.has(one)), ...[...closed].filter((one) => !now.has(one))])];
      closed = now;
    }
    const fits = data.fits.reduce((sum, one) => sum + one, 0);
    total.textContent = data.name.length.toLocaleString("en") + " · capacity for " + fits.toLocaleString("en") + " more";
    state.hidden = data.name.length > 0;
    state.textContent = "There are no hosts: no agent has reported one to placement yet.";
    whole ? lay() : repaint(moved);
  }

  box.addEventListener("scroll", show, { passive: true });
  box.addEventListener("pointermove", (event) => { const host = under(event); if (host >= 0) describe(host); });
  box.addEventListener("pointerdown", (event) => describe(under(event)));
  box.addEventListener("dblclick", (event) => { const host = under(event); if (host >= 0) location.href = "/hosts/" + data.root[host]; });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && at >= 0) location.href = "/hosts/" + data.root[at];
    if (move(event.key)) event.preventDefault(); });
  klass.addEventListener("change", paint);
  size.addEventListener("input", () => { chosen = true; lay(); });
  find.addEventListener("input", () => {
    const wanted = find.value.trim().toLowerCase();
    const host = wanted && data ? data.name.findIndex((_, one) => isWanted(one, wanted)) : -1;
    if (host >= 0) { box.scrollTop = Math.max(0, places[host][1] - 60); at = -1; describe(host); }
    paint();
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); read(); });
  new ResizeObserver(() => {
    const now = box.clientWidth + " " + innerHeight;
    if (now !== drawnFor) { drawnFor = now; lay(); }
  }).observe(document.documentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); paint(); });
  get("heat-live").addEventListener("part", read); // hosts have changed
  readColours();
  read();
  setInterval(() => { if (!document.hidden) read(); }, EVERY);
})();
