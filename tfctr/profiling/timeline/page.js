"use strict";
// The picture of the timeline, and tables that sort. Every text goes in as text, never as markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const canvas = document.getElementById("timeline");
  const ROW = 24, GAP = 6, HEAD = 30, AXIS = 26, MINIMUM = 200; // pixels; nanoseconds that the view may show at least
  const LANE = 0, DEPTH = 1, START = 2, LENGTH = 3, NAME = 4, OP = 5, ROLE = 6, TAG = 7, BYTES = 8;
  let view = { from: 0, to: data.scale }, colours = {}, needle = "", width = 0, height = 0, gutter = 160, hovered = null;

  function time(ns) {
    if (ns >= 999500) { const v = ns / 1e6; return (v < 99.95 ? v.toFixed(2) : v.toFixed(0)) + " ms"; }
    if (ns >= 999.5) { const v = ns / 1e3; return (v < 9.995 ? v.toFixed(2) : v < 99.95 ? v.toFixed(1) : v.toFixed(0)) + " µs"; }
    return Math.round(ns) + " ns";
  }

  // Where each lane lies: { side, lane, y }, from the top.
  const lanes = [];
  function place() {
    lanes.length = 0;
    let y = AXIS;
    data.sides.forEach((side, s) => {
      side.y = y; y += HEAD;
      side.lanes.forEach((lane, l) => { lanes.push({ side: s, lane: l, y, rows: lane.rows }); y += lane.rows * ROW + GAP; });
      y += 12;
    });
    height = y;
  }

  function read_colours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of [...data.roles, "paper", "ink", "soft", "line", "tint", "on", "on-pale"]) colours[name] = style.getPropertyValue("--" + name).trim();
  }

  const x_of = (t) => gutter + (t - view.from) / (view.to - view.from) * (width - gutter);
  const t_of = (x) => view.from + (x - gutter) / (width - gutter) * (view.to - view.from);

  function matches(side, e) {
    if (!needle) return true;
    const tag = side.tags[e[TAG]];
    const texts = [side.texts[e[NAME]], side.texts[e[OP]], tag[2], tag[3], ...tag[0]];
    return texts.some((text) => text.toLowerCase().includes(needle));
  }

  function draw() {
    if (!canvas || !width) return;
    const ratio = window.devicePixelRatio || 1, g = canvas.getContext("2d");
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); canvas.style.height = height + "px";
    }
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.fillStyle = colours.paper; g.fillRect(0, 0, width, height);
    g.textBaseline = "middle";
    draw_axis(g);
    data.sides.forEach((side) => draw_side(g, side));
    g.save(); g.beginPath(); g.rect(gutter, AXIS, width - gutter, height); g.clip();
    for (const place of lanes) draw_lane(g, place);
    g.restore();
  }

  function draw_axis(g) {
    const span = view.to - view.from;
    const most = Math.max(2, Math.floor((width - gutter) / 78)), decade = Math.pow(10, Math.floor(Math.log10(span / most || 1)));
    const step = [1, 2, 5, 10].map((k) => k * decade).find((k) => span / k <= most);
    g.font = "12px system-ui, sans-serif"; g.textAlign = "center";
    for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
      const x = x_of(t);
      g.fillStyle = colours.line; g.fillRect(Math.round(x), AXIS - 4, 1, height - AXIS);
      g.fillStyle = colours.soft;
      if (x >= gutter && x < width - 28) g.fillText(t === 0 ? "0" : time(t).replace(/\.0+ /, " "), x, AXIS / 2);
    }
  }

  function draw_side(g, side) {
    g.fillStyle = colours.tint; g.fillRect(0, side.y, width, HEAD - 6);
    g.textAlign = "left"; g.font = "600 13px system-ui, sans-serif"; g.fillStyle = colours.ink;
    g.fillText(side.title + ", " + time(side.step), 10, side.y + (HEAD - 6) / 2);
    const end = x_of(side.step);
    if (end > gutter && end < width) { g.fillStyle = colours.soft; g.fillRect(Math.round(end), side.y + HEAD - 6, 1, side_height(side)); }
  }

  function side_height(side) { return side.lanes.reduce((sum, lane) => sum + lane.rows * ROW + GAP, 0) + 6; }

  function draw_lane(g, place) {
    const side = data.sides[place.side], lane = side.lanes[place.lane];
    const last = new Array(lane.rows).fill(-1), roles = new Array(lane.rows).fill(-1);
    g.font = "11.5px system-ui, sans-serif"; g.textAlign = "left";
    for (const e of side.by_lane[place.lane]) {
      const end = e[START] + e[LENGTH];
      if (end < view.from || e[START] > view.to) continue;
      const x = Math.max(x_of(e[START]), gutter - 4), right = Math.min(x_of(end), width + 4), w = right - x, y = place.y + e[DEPTH] * ROW;
      const role = data.roles[e[ROLE]], hit = matches(side, e);
      if (lane.kind === "transfers") { draw_mark(g, x, y, hit ? colours.transfer : colours.line); continue; }
      if (w < 0.7 && !needle && x < last[e[DEPTH]] && roles[e[DEPTH]] === e[ROLE]) continue; // under one that is drawn
      const cell = Math.max(w - (w > 5 ? 1 : 0), 0.7);
      g.globalAlpha = hit ? 1 : 0.13; g.fillStyle = colours[role]; g.fillRect(x, y, cell, ROW - 2);
      if (e === hovered) { g.strokeStyle = colours.ink; g.lineWidth = 2; g.strokeRect(x, y, Math.max(cell, 2), ROW - 2); }
      if (w > 34 && hit) label(g, side.texts[e[OP]], x + 5, y + (ROW - 2) / 2, w - 9, role);
      g.globalAlpha = 1;
      last[e[DEPTH]] = x + 0.7; roles[e[DEPTH]] = e[ROLE];
    }
  }

  function draw_mark(g, x, y, colour) {
    g.fillStyle = colour; g.beginPath(); g.moveTo(x, y + 2); g.lineTo(x + 5, y + ROW / 2 - 1); g.lineTo(x, y + ROW - 4); g.lineTo(x - 5, y + ROW / 2 - 1); g.fill();
  }

  function label(g, text, x, y, room, role) {
    let shown = text;
    if (g.measureText(shown).width > room) {
      const letters = Math.floor(room / 6.4) - 1;
      if (letters < 3) return;
      shown = text.slice(0, letters) + "…";
    }
    g.fillStyle = role === "overhead" ? colours["on-pale"] : colours.on; g.fillText(shown, x, y + 0.5);
  }

  // Names of lanes are drawn last, over whatever moved under them.
  function draw_names() {
    const g = canvas.getContext("2d");
    for (const place of lanes) {
      g.fillStyle = colours.paper; g.fillRect(0, place.y - 2, gutter - 1, place.rows * ROW + 4);
      g.fillStyle = colours.soft; g.font = "12px system-ui, sans-serif"; g.textAlign = "left";
      const name = data.sides[place.side].lanes[place.lane].name, room = gutter - 18;
      let shown = name;
      while (shown.length > 4 && g.measureText(shown + "…").width > room) shown = shown.slice(0, -1);
      g.fillText(shown === name ? name : shown + "…", 10, place.y + (ROW - 2) / 2);
    }
  }

  let asked = false;
  function redraw() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; draw(); draw_names(); });
  }

  function show(from, to) {
    let span = Math.min(Math.max(to - from, MINIMUM), data.scale);
    from = Math.min(Math.max(from, 0), data.scale - span);
    view = { from, to: from + span };
    redraw();
  }
  function zoom(factor, at) { show(at - (at - view.from) * factor, at + (view.to - at) * factor); }
  const middle = () => (view.from + view.to) / 2;

  function under(x, y) {
    const place = lanes.find((p) => y >= p.y && y < p.y + p.rows * ROW);
    if (!place || x < gutter) return null;
    const side = data.sides[place.side], depth = Math.floor((y - place.y) / ROW), lane = side.lanes[place.lane];
    const slack = (view.to - view.from) / (width - gutter) * (lane.kind === "transfers" ? 6 : 2), t = t_of(x);
    let best = null, distance = Infinity;
    for (const e of side.by_lane[place.lane]) {
      if (e[DEPTH] !== depth) continue;
      const off = t < e[START] ? e[START] - t : Math.max(0, t - e[START] - e[LENGTH]);
      if (off <= slack && off < distance) { best = e; distance = off; }
    }
    return best && { side, lane, event: best };
  }

  function fill_card(card, found) {
    const { side, lane, event } = found, tag = side.tags[event[TAG]], transfer = lane.kind === "transfers";
    const rows = [["node", side.texts[event[NAME]]], ["time", transfer ? "not measured" : time(event[LENGTH]) + " (" + (100 * event[LENGTH] / side.step).toFixed(2) + " % of the step)"], ["begins at", time(event[START])]];
    if (transfer) rows.push(["size", event[BYTES] < 0 ? "not known" : event[BYTES].toLocaleString("en") + " bytes"]);
    const some = (names, count) => names.slice(0, 12).join(", ") + (count > 12 ? " and " + (count - 12) + " more" : "");
    if (tag[1]) rows.push([tag[1] === 1 ? "feature" : tag[1] + " features", some(tag[0], tag[1])]);
    if (tag[5]) rows.push([tag[5] === 1 ? "table" : tag[5] + " tables", some(tag[4], tag[5])]);
    if (tag[2]) rows.push(["made by pass", tag[2]]);
    if (tag[3]) rows.push(["rule", tag[3]]);
    rows.push(["part", data.words[event[ROLE]]], ["lane", lane.name]);
    card.replaceChildren();
    card.appendChild(document.createElement("b")).textContent = side.texts[event[OP]];
    const list = card.appendChild(document.createElement("dl"));
    for (const [key, value] of rows) { list.appendChild(document.createElement("dt")).textContent = key; list.appendChild(document.createElement("dd")).textContent = value; }
  }

  function hover(x, y) {
    const card = document.getElementById("hover"), box = canvas.getBoundingClientRect();
    const found = under(x - box.left, y - box.top);
    if ((found && found.event) !== hovered) { hovered = found && found.event; redraw(); }
    card.hidden = !found;
    if (!found) return;
    fill_card(card, found);
    card.style.left = Math.max(4, Math.min(x + 14, innerWidth - card.offsetWidth - 8)) + "px";
    card.style.top = (y + 18 + card.offsetHeight > innerHeight ? Math.max(4, y - card.offsetHeight - 12) : y + 18) + "px";
  }
  function leave() { document.getElementById("hover").hidden = true; if (hovered) { hovered = null; redraw(); } }

  function listen() {
    let held = null;
    canvas.addEventListener("wheel", (e) => {
      e.preventDefault();
      const span = view.to - view.from;
      if (e.shiftKey || Math.abs(e.deltaX) > Math.abs(e.deltaY)) { const by = (e.deltaX || e.deltaY) / (width - gutter) * span; show(view.from + by, view.to + by); }
      else zoom(Math.exp(Math.max(-1, Math.min(1, e.deltaY / 300))), Math.max(view.from, t_of(e.offsetX)));
    }, { passive: false });
    canvas.addEventListener("pointerdown", (e) => { held = { x: e.clientX, from: view.from, to: view.to }; canvas.setPointerCapture(e.pointerId); canvas.classList.add("moving"); });
    canvas.addEventListener("pointermove", (e) => {
      if (!held) { hover(e.clientX, e.clientY); return; }
      const by = (held.x - e.clientX) / (width - gutter) * (held.to - held.from);
      if (Math.abs(held.x - e.clientX) > 2) { leave(); show(held.from + by, held.to + by); }
    });
    const release = (e) => { if (held && Math.abs(held.x - e.clientX) <= 2) hover(e.clientX, e.clientY); held = null; canvas.classList.remove("moving"); };
    canvas.addEventListener("pointerup", release); canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("dblclick", () => show(0, data.scale));
    canvas.addEventListener("keydown", (e) => {
      const by = (view.to - view.from) / 8, keys = { ArrowLeft: () => show(view.from - by, view.to - by), ArrowRight: () => show(view.from + by, view.to + by), "+": () => zoom(0.6, middle()), "=": () => zoom(0.6, middle()), "-": () => zoom(1 / 0.6, middle()), 0: () => show(0, data.scale) };
      if (keys[e.key]) { e.preventDefault(); keys[e.key](); }
    });
    document.getElementById("closer").addEventListener("click", () => zoom(0.5, middle()));
    document.getElementById("farther").addEventListener("click", () => zoom(2, middle()));
    document.getElementById("whole").addEventListener("click", () => show(0, data.scale));
    document.getElementById("find").addEventListener("input", (e) => { needle = e.target.value.trim().toLowerCase(); count(); redraw(); });
    new ResizeObserver(measure).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { read_colours(); redraw(); });
    // Paper is white: colours of the light page while printing, drawn at once.
    const printing = (on) => { document.documentElement.classList.toggle("printing", on); read_colours(); draw(); draw_names(); };
    addEventListener("beforeprint", () => printing(true)); addEventListener("afterprint", () => printing(false));
  }

  function count() {
    const told = data.sides.map((side) => { const some = side.events.filter((e) => matches(side, e)); return some.length + " (" + time(some.reduce((sum, e) => sum + e[LENGTH], 0)) + ")"; });
    document.getElementById("found").textContent = needle ? "found " + told.join(" and ") : "";
  }

  function measure() {
    width = canvas.parentElement.clientWidth; gutter = width < 620 ? 92 : 216;
    canvas.style.width = width + "px";
    draw(); draw_names();
  }

  if (canvas) {
    for (const side of data.sides) { side.by_lane = side.lanes.map(() => []); for (const e of side.events) side.by_lane[e[LANE]].push(e); }
    place(); read_colours(); measure(); listen();
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const now = head.getAttribute("aria-sort"), falling = now ? now === "ascending" : column > 0; // numbers: largest first
      heads.forEach((one) => one.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const value = (row) => row.cells[column].dataset.v, body = table.tBodies[0];
      const rows = [...body.rows].sort((p, q) => (column ? Number(value(p)) - Number(value(q)) : value(p).localeCompare(value(q))) * (falling ? -1 : 1));
      body.append(...rows);
    }));
  }
})();
