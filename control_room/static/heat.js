// All hosts as tiles on one canvas that is as large as what one sees of it.
"use strict";
(() => {
  const SIZES = [[9, 9], [15, 15], [26, 20], [52, 24], [118, 26]]; // of a tile; the last has room for a name
  const GAP = 1, HEAD = 24, EVERY = 5000;
  const get = (id) => document.getElementById(id);
  const [box, canvas, space, about, problem] = ["heat", "heat-canvas", "heat-space", "heat-about", "heat-problem"].map(get);
  const [klass, flavor, find, size, form, total] =
    ["heat-class", "heat-flavor", "heat-find", "heat-size", "heat-form", "heat-count"].map(get);
  const draw = canvas.getContext("2d");
  let data = null, rows = [], places = [], at = -1, colours = {}, closed = new Set(), asked = 0, pending = false;

  function readColours() {
    const all = getComputedStyle(document.documentElement);
    for (const name of ["f0", "f1", "f2", "f3", "f4", "f5", "bar", "track", "ink", "quiet", "card", "main"]) {
      colours[name] = all.getPropertyValue("--" + name).trim();
    }
  }

  // Where each host is: group by group, a heading and rows of tiles.
  function lay() {
    if (!data) return;
    const [wide, high] = SIZES[size.value], width = box.clientWidth - 16;
    const across = Math.max(1, Math.floor(width / (wide + GAP)));
    rows = []; places = new Array(data.name.length);
    let y = 4, group = -1, row = null;
    for (let host = 0; host < data.name.length; host++) {
      if (data.group[host] !== group) {
        if (row) y += high + GAP;
        group = data.group[host];
        rows.push({ y, head: group });
        y += HEAD; row = null;
      }
      if (!row || row.count === across) {
        if (row) y += high + GAP;
        row = { y, first: host, count: 0 };
        rows.push(row);
      }
      places[host] = [8 + row.count * (wide + GAP), y];
      row.count++;
    }
    const height = y + high + 8;
    space.style.height = Math.max(0, height - box.clientHeight) + "px";
    paint();
  }

  const fitsColour = (host) => {
    if (closed.has(host)) return colours.f5;
    const fits = data.fits[host];
    return colours[fits < 1 ? "f0" : fits < 2 ? "f1" : fits < 4 ? "f2" : fits < 8 ? "f3" : "f4"];
  };

  function paint() {
    if (pending) return;
    pending = true;
    requestAnimationFrame(() => { pending = false; paintNow(); });
  }

  function paintNow() {
    const ratio = window.devicePixelRatio || 1, width = box.clientWidth, height = box.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
    }
    draw.setTransform(ratio, 0, 0, ratio, 0, 0);
    draw.clearRect(0, 0, width, height);
    if (!data) return;
    const [wide, high] = SIZES[size.value], top = box.scrollTop, half = Math.floor(wide * 0.4);
    const capacity = data.capacity[klass.value] || [], used = data.used[klass.value] || [];
    const wanted = find.value.trim().toLowerCase();
    draw.textBaseline = "middle";
    for (const row of rows) {
      const y = row.y - top;
      if (y > height || y + Math.max(high, HEAD) < 0) continue;
      if (row.head !== undefined) {
        const [cell, zone] = data.groups[row.head];
        draw.fillStyle = colours.ink; draw.font = "600 13px system-ui, sans-serif";
        draw.fillText("cell " + cell + (zone ? " · zone " + zone : ""), 8, y + HEAD / 2);
        continue;
      }
      for (let host = row.first; host < row.first + row.count; host++) {
        const x = places[host][0], share = capacity[host] ? Math.min(1, used[host] / capacity[host]) : 0;
        const dim = wanted && !data.name[host].toLowerCase().includes(wanted) && !data.root[host].startsWith(wanted);
        draw.globalAlpha = dim ? 0.15 : 1;
        draw.fillStyle = fitsColour(host);
        if (size.value === "4") { // a name needs the tile to itself: the bar lies below it
          draw.fillRect(x, y, 6, high);
          draw.fillStyle = colours.track; draw.fillRect(x + 8, y + high - 5, wide - 8, 5);
          draw.fillStyle = colours.bar; draw.fillRect(x + 8, y + high - 5, (wide - 8) * share, 5);
          draw.fillStyle = colours.ink; draw.font = "12px system-ui, sans-serif";
          draw.fillText(clipped(data.name[host], wide - 12), x + 9, y + (high - 5) / 2);
        } else {
          draw.fillRect(x + half, y, wide - half, high);
          draw.fillStyle = colours.track; draw.fillRect(x, y, half, high);
          draw.fillStyle = colours.bar; draw.fillRect(x, y + high * (1 - share), half, high * share);
        }
      }
    }
    draw.globalAlpha = 1;
    if (at >= 0 && at < places.length) {
      draw.strokeStyle = colours.ink; draw.lineWidth = 2;
      draw.strokeRect(places[at][0] - 1, places[at][1] - top - 1, wide + 2, high + 2);
    }
  }

  function clipped(name, width) {
    if (draw.measureText(name).width <= width) return name;
    let end = name.length; // the end of a name tells hosts apart
    while (end > 1 && draw.measureText("…" + name.slice(-end)).width > width) end--;
    return "…" + name.slice(-end);
  }

  function tell(host) {
    if (host === at && host >= 0) return;
    at = host;
    if (host < 0 || !data) { about.textContent = "Point at a host to read its name."; paint(); return; }
    const [cell, zone] = data.groups[data.group[host]];
    const held = data.classes.filter((one) => data.capacity[one][host])
      .map((one) => one + " " + data.used[one][host] + " of " + data.capacity[one][host]);
    const fits = closed.has(host) ? "closed to new instances" : data.fits[host] + " more fit";
    about.replaceChildren(link(host), " cell " + cell + (zone ? ", zone " + zone : "") + " · " + fits + " · held: " +
      (held.join(", ") || "nothing is there"));
    paint();
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
    const x = event.clientX - edge.left, y = event.clientY - edge.top + box.scrollTop;
    for (const row of rows) {
      if (row.head === undefined && y >= row.y && y < row.y + high + GAP) {
        const column = Math.floor((x - 8) / (wide + GAP));
        return column >= 0 && column < row.count ? row.first + column : -1;
      }
    }
    return -1;
  }

  function move(key) {
    const across = rows.reduce((most, row) => Math.max(most, row.count || 0), 1);
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across, Home: -1e9, End: 1e9 }[key];
    if (!by || !data || !data.name.length) return false;
    const host = Math.min(data.name.length - 1, Math.max(0, (at < 0 ? (by > 0 ? -1 : 1) : at) + by));
    const y = places[host][1], high = SIZES[size.value][1];
    if (y < box.scrollTop + HEAD) box.scrollTop = y - HEAD - 8;
    if (y + high > box.scrollTop + box.clientHeight) box.scrollTop = y + high + 8 - box.clientHeight;
    tell(host);
    return true;
  }

  function say(text) { problem.textContent = text; problem.hidden = !text; }

  async function read() {
    const mine = ++asked;
    const query = new URLSearchParams({ flavor: flavor.value });
    if (data && data.asked === flavor.value) { query.set("layout", data.layout); query.set("since", data.number); }
    try {
      const answer = await fetch("/hosts.json?" + query);
      if (answer.status === 401 || answer.status === 403) { say("Your session is over: load the page again to sign in."); return; }
      const told = await answer.json();
      if (mine !== asked) return;
      say(told.problem || "");
      if (!told.problem) take(told);
    } catch { say("The control room cannot be reached; what you see is not the latest. Trying again …"); }
  }

  function take(told) {
    const whole = !told.at;
    if (whole) {
      const chosen = klass.value;
      data = { ...told, asked: flavor.value };
      klass.replaceChildren(...told.classes.map((one) => new Option(one, one, false, one === chosen)));
      at = -1;
    } else {
      told.at.forEach((host, place) => {
        for (const one of data.classes) data.used[one][host] = told.used[one][place];
        data.fits[host] = told.fits[place];
      });
      data.number = told.number;
    }
    if (told.closed) closed = new Set(told.closed);
    const fits = data.fits.reduce((sum, one) => sum + one, 0);
    total.textContent = data.name.length.toLocaleString("en") + " · room for " + fits.toLocaleString("en") + " more";
    if (!data.name.length) say("Placement knows no host that an agent reports yet.");
    whole ? lay() : paint();
  }

  box.addEventListener("scroll", paint);
  box.addEventListener("pointermove", (event) => { const host = under(event); if (host >= 0) tell(host); });
  box.addEventListener("pointerdown", (event) => tell(under(event)));
  box.addEventListener("dblclick", (event) => { const host = under(event); if (host >= 0) location.href = "/hosts/" + data.root[host]; });
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && at >= 0) location.href = "/hosts/" + data.root[at];
    if (move(event.key)) event.preventDefault(); });
  klass.addEventListener("change", paint);
  size.addEventListener("input", lay);
  find.addEventListener("input", () => {
    const wanted = find.value.trim().toLowerCase();
    const host = wanted && data ? data.name.findIndex((name, one) => name.toLowerCase().includes(wanted) || data.root[one].startsWith(wanted)) : -1;
    if (host >= 0) { box.scrollTop = Math.max(0, places[host][1] - 60); at = -1; tell(host); }
    paint();
  });
  form.addEventListener("submit", (event) => { event.preventDefault(); read(); });
  new ResizeObserver(lay).observe(box);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); paint(); });
  document.addEventListener("visibilitychange", () => { if (!document.hidden) read(); });
  readColours();
  read();
  setInterval(() => { if (!document.hidden) read(); }, EVERY);
})();
