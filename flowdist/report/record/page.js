"use strict";
/* Draws the data of the page on one canvas. Everything that can be selected is an item of a row, {kind, t0, t1, ...}.
   The rows are rebuilt when the view, the filter or the height changes. Times are microseconds. */
let DATA, names, attempts, generations, incidents, events, end, failed;
const HOW = ["still runs", "succeeded", "failed", "was stopped", "was lost with its node"];
const FAILED = 2, LOST = 4, SUCCEEDED = 1;
const MARKS = 36, GUTTER = 132;
let AXIS = 36, HEAD = AXIS + MARKS; // lower without a wall clock
const $ = (id) => document.getElementById(id);
const canvas = $("canvas"), scroller = $("scroll"), pen = canvas.getContext("2d");
const state = { view: "role", filter: "", height: 18, t0: 0, t1: 1, focus: null, hover: null, all: false, open: new Set() };
let rows = [], captions = [], crosses = [], colours = {}, hatch = null, waiting = false, size = { width: 0, height: 0 };

/* ---- the model ---- */

function load(data) {
  DATA = data;
  end = Math.max(DATA.end, 1);
  AXIS = DATA.clock.length ? 36 : 24;
  HEAD = AXIS + MARKS;
  names = DATA.replicas.map(([role, index]) => `${DATA.roles[role][0]}/${index}`);
  attempts = [];
  generations = DATA.generations.map(([world, number, from, to, members, decision, list]) => {
    const generation = { kind: "generation", world, number, t0: from, t1: to < 0 ? end : to, members, decision };
    for (const a of list) {
      const at = (i) => (a[i] < 0 ? null : from + a[i]);
      attempts.push({
        kind: "attempt", replica: a[0], number: a[1], node: a[2], rank: a[3], t0: at(4), running: at(5), ready: at(6),
        stopping: at(7), t1: at(8) === null ? end : at(8), lost: at(9), how: a[10], decision: a[11] ?? -1,
        step: a[13] ?? -1, left: a[14] ?? -1, unsaved: a[15] === 1, lostTo: (a[12] ?? -1) < 0 ? null : at(12), hung: null, generation,
      });
    }
    return generation;
  });
  for (const a of attempts) if (a.lost !== null) a.lostTo ??= a.t1;
  incidents = DATA.incidents.map((i) => ({
    kind: "incident", number: i[0], t0: i[1], t1: i[2] < 0 ? end : i[2], cause: i[3], root: i[4], reason: i[5],
    result: i[6], charged: i[7], restarted: i[8], decision: i[9], stayed: i[10],
    stepped: i[11] < 0 ? null : i[11],
  }));
  const faults = DATA.faults.map(([t, spec, target, node]) => ({ kind: "fault", t0: t, t1: t, spec, target, node }));
  const unsaved = DATA.unsaved.map(([world, t, step, reason]) => ({ kind: "unsaved", t0: t, t1: t, world, step, reason }));
  events = [...faults, ...unsaved, ...incidents].sort((a, b) => a.t0 - b.t0);
  for (const fault of faults) if (/:hang\b/.test(fault.spec)) noteHung(fault);
  failed = new Set(attempts.filter((a) => a.how === FAILED || a.how === LOST || a.hung !== null).map((a) => a.replica));
}

function noteHung(fault) {
  const name = fault.target.split("/").slice(0, 2).join("/").split(".")[0];
  const hit = attempts.find((a) => names[a.replica] === name && a.t0 <= fault.t0 && fault.t0 <= a.t1);
  if (hit) hit.hung = fault.t0;
}

function byStart(list) { return list.sort((a, b) => a.t0 - b.t0); }

function matches(...words) {
  const wanted = state.filter.toLowerCase().split(/[\s,]+/).filter(Boolean);
  return !wanted.length || wanted.some((word) => words.some((text) => text.toLowerCase().includes(word)));
}

function layout() {
  rows = [{ y: AXIS, height: MARKS, kind: "events", label: "faults, incidents", items: events }];
  let y = HEAD;
  const add = (row) => { rows.push({ y, ...row }); y += row.height; };
  DATA.worlds.forEach(([name, gang], world) => {
    const items = gang ? generations.filter((g) => g.world === world) : [];
    const saved = DATA.checkpoints.filter((c) => c[0] === world).map((c) => c[1]);
    if (items.length && matches(name)) add({ kind: "strip", height: 20, label: `world ${name}`, items, saved });
  });
  addGoodput(add);
  (state.view === "role" ? lanesByRole : lanesByNode)(add);
  $("spacer").style.height = `${y + 8}px`;
  scroller.style.height = `min(66vh, ${Math.max(y + 10, 240)}px)`;
  if (state.focus && state.focus.kind !== "cluster" && !rows.some((row) => row.items.includes(state.focus))) state.focus = null;
  redraw();
}

function lanesByRole(add) {
  const of = DATA.replicas.map(() => []);
  for (const attempt of attempts) of[attempt.replica].push(attempt);
  DATA.roles.forEach(([role, kind], number) => {
    const all = DATA.replicas.map((r, i) => i).filter((i) => DATA.replicas[i][0] === number);
    const shown = all.filter((i) => of[i].length && matches(names[i], ...of[i].map((a) => DATA.nodes[a.node])));
    if (!shown.length) return;
    const never = all.filter((i) => !of[i].length).length, bad = shown.filter((i) => failed.has(i)).length;
    const label = `${role} · ${kind} · ${shown.length} replica${shown.length === 1 ? "" : "s"}${bad ? `, ${bad} failed` : ""}`;
    add({ kind: "group", height: 22, label: never ? `${label} (${never} never started)` : label, items: [] });
    addSteps(add, role);
    const folded = isFolded(role, shown.length) ? shown.filter((i) => !failed.has(i)) : [];
    const hidden = new Set(folded.length > 1 ? folded : []);
    for (const i of shown) {
      if (hidden.has(i)) continue;
      const world = DATA.replicas[i][2];
      const bands = DATA.worlds[world][1] ? generations.filter((g) => g.world === world) : [];
      add({ kind: "lane", height: state.height, label: names[i], items: byStart(of[i]), bands });
    }
    if (hidden.size) addFold(add, role, [...hidden].map((i) => of[i]));
  });
}

function lanesByNode(add) {
  const folded = [];
  DATA.nodes.forEach((node, number) => {
    const mine = byStart(attempts.filter((a) => a.node === number && matches(node, names[a.replica])));
    if (!mine.length && !matches(node)) return;
    const away = gaps(DATA.presences.filter((p) => p[0] === number));
    const well = !mine.some((a) => a.how === FAILED || a.how === LOST || a.hung !== null) && away.every(([, to]) => to < end);
    if (well && isFolded("nodes", DATA.nodes.length)) folded.push({ node, mine, away }); else addNode(add, node, mine, away);
  });
  if (folded.length > 1) addFold(add, "nodes", folded.map(({ mine }) => mine));
  else for (const { node, mine, away } of folded) addNode(add, node, mine, away);
}

function addNode(add, node, mine, away) {
  const slots = [];
  for (const attempt of mine) {
    const free = slots.filter((slot) => slot[slot.length - 1].t1 <= attempt.t0);
    const slot = free.find((s) => s[s.length - 1].replica === attempt.replica) || free[0];
    if (slot) slot.push(attempt); else slots.push([attempt]);
  }
  add({ kind: "group", height: 22, label: node, items: [], away });
  for (const items of slots) {
    const there = [...new Set(items.map((a) => names[a.replica]))];
    const label = there.length > 2 ? `${there[0]} + ${there.length - 1} more` : there.join(", ");
    add({ kind: "lane", height: state.height, label, items, bands: [], away });
  }
}

function gaps(presences) {
  const found = [];
  let from = 0;
  for (const [, begin, over] of presences) {
    if (begin > from) found.push([from, begin]);
    from = over < 0 ? end : over;
  }
  if (from < end) found.push([from, end]);
  return found;
}

/* ---- drawing ---- */

const x = (t) => GUTTER + ((t - state.t0) / (state.t1 - state.t0)) * (size.width - GUTTER);
const time = (px) => state.t0 + ((px - GUTTER) / (size.width - GUTTER)) * (state.t1 - state.t0);

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ground", "panel", "line", "text", "quiet", "band", "starting", "running", "ready", "stopping",
    "bad", "incident", "away", "focus", "onbar", "onmark", "saved", "hatch"]) colours[name] = style.getPropertyValue(`--${name}`).trim();
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const brush = tile.getContext("2d");
  brush.strokeStyle = colours.hatch;
  brush.lineWidth = 1.4;
  brush.beginPath();
  for (const shift of [-6, 0, 6]) { brush.moveTo(shift, 6); brush.lineTo(shift + 6, 0); }
  brush.stroke();
  hatch = pen.createPattern(tile, "repeat");
}

function resize() {
  const ratio = window.devicePixelRatio || 1;
  size = { width: scroller.clientWidth, height: scroller.clientHeight };
  canvas.width = Math.round(size.width * ratio);
  canvas.height = Math.round(size.height * ratio);
  canvas.style.height = `${size.height}px`;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  redraw();
}

function draw() {
  const top = scroller.scrollTop;
  pen.fillStyle = colours.ground;
  pen.fillRect(0, 0, size.width, size.height);
  pen.textBaseline = "middle";
  const visible = rows.filter((row) => row.kind !== "events" && row.y + row.height > top + HEAD && row.y < top + size.height);
  pen.save();
  pen.beginPath();
  pen.rect(0, HEAD, size.width, size.height - HEAD);
  pen.clip();
  const clipped = (paint) => {
    pen.save();
    pen.beginPath();
    pen.rect(GUTTER, HEAD, size.width - GUTTER, size.height - HEAD);
    pen.clip();
    paint();
    pen.restore();
  };
  captions = [];
  crosses = [];
  pen.fillStyle = colours.panel;
  for (const row of visible) if (row.kind === "group") pen.fillRect(0, row.y - top, size.width, row.height);
  clipped(() => visible.forEach((row) => drawRow(row, row.y - top)));
  clipped(() => crosses.forEach((place) => cross(...place)));
  clipped(drawLines);
  clipped(drawCaptions);
  visible.forEach((row) => drawLabel(row, row.y - top));
  pen.restore();
  drawHead();
}

function drawRow(row, y) {
  if (row.kind === "curve") { drawCurve(row, y); return; }
  if (row.kind === "fold") { drawFold(row, y); return; }
  for (const band of inView(row.bands || [])) {
    if (band.number % 2) continue;
    pen.fillStyle = colours.band;
    pen.fillRect(x(band.t0), y, x(band.t1) - x(band.t0), row.height);
  }
  for (const [from, to] of row.away || []) {
    pen.fillStyle = colours.away;
    pen.fillRect(x(from), y, x(to) - x(from), row.height);
  }
  let last = -Infinity;
  for (const item of inView(row.items)) {
    const right = x(item.t1);
    if (right - last < 0.5 && item !== state.focus) continue; // too narrow to be visible
    last = Math.max(last, right);
    if (item.kind === "generation") drawGeneration(item, y, row.height); else drawAttempt(item, y, row.height);
  }
  for (const t of row.saved || []) {
    if (t < state.t0 || t > state.t1) continue;
    pen.fillStyle = colours.saved;
    pen.fillRect(x(t) - 0.5, y + row.height - 7, 1.5, 6);
  }
}

function inView(items) {
  let low = 0, high = items.length;
  while (low < high) { // the first that ends after the left edge: within a row items end in the order of their starts
    const middle = (low + high) >> 1;
    if (items[middle].t1 < state.t0) low = middle + 1; else high = middle;
  }
  const found = [];
  for (let i = low; i < items.length && items[i].t0 <= state.t1; i++) found.push(items[i]);
  return found;
}

function bar(from, to, y, height, colour) {
  const left = Math.max(x(from), GUTTER - 2), width = Math.max(Math.min(x(to), size.width + 2) - left, 2);
  pen.fillStyle = colour;
  pen.fillRect(left, y, width, height);
  return { left: Math.max(left, GUTTER), width: left + width - Math.max(left, GUTTER) };
}

function drawAttempt(a, y, laneHeight) {
  const height = laneHeight - 3, middle = y + 1 + height / 2;
  const moments = [[a.t0, "starting"], [a.running, "running"], [a.ready, "ready"], [a.stopping, "stopping"]];
  const known = moments.filter(([t]) => t !== null);
  const phases = known.map(([t, phase], i) => [t, i + 1 < known.length ? known[i + 1][0] : a.t1, colours[phase]]);
  for (const [from, to, colour] of phases) bar(from, to, y + 1, height, colour);
  if (a.lost !== null) {
    pen.globalAlpha = 0.55;
    bar(a.lost, a.lostTo, y + 1, height, hatch);
    pen.globalAlpha = 1;
  }
  if (a.hung !== null) {
    bar(a.hung, a.t1, y + 1, height, colours.stopping);
    bar(a.hung, a.t1, y + 1 + height / 2 - 1, 2, colours.bad);
  }
  const left = Math.max(x(a.t0), GUTTER), width = Math.min(x(a.t1), size.width) - left;
  if (width > 64 && height >= 9) {
    const name = state.view === "role" ? DATA.nodes[a.node] : names[a.replica];
    pen.font = `${Math.min(12, height - 1)}px system-ui, sans-serif`;
    const text = `${name} · attempt ${a.number}`;
    const wide = pen.measureText(text).width;
    const isHatched = a.lost !== null && x(a.lost) < left + wide + 8;
    if (wide < width - 12) captions.push({ text, wide, left: left + 5, y, height, phases, font: pen.font, isHatched });
  }
  if ((a.how === FAILED || a.how === LOST) && width > 2) crosses.push([x(a.t1), middle, Math.max(3, Math.min(5, height / 2 - 1))]); // over the next bar
  if (a === state.focus || a === state.hover) frame(left, y, width, laneHeight - 1, a === state.focus);
}

function drawCaptions() { // over the lines of faults and the hatching, which would run through them
  for (const { text, wide, left, y, height, phases, font, isHatched } of captions) {
    if (isHatched || inWindow(events).some((item) => x(item.t0) > left - 2 && x(item.t0) < left + wide + 2)) {
      for (const [from, to, colour] of phases) {
        const begin = Math.max(left - 2, x(from)), over = Math.min(left + wide + 2, x(to));
        pen.fillStyle = colour;
        if (over > begin) pen.fillRect(begin, y + 1, over - begin, height);
      }
    }
    pen.font = font;
    pen.fillStyle = colours.onbar;
    pen.fillText(text, left, y + 1 + height / 2);
  }
}

function frame(left, y, width, height, focused) {
  pen.strokeStyle = focused ? colours.focus : colours.text;
  pen.lineWidth = focused ? 2.5 : 1;
  pen.strokeRect(left, y + 0.5, Math.max(width, 3), height);
}

function cross(at, y, r) { // with an edge, since it lies on bars of any colour
  for (const [colour, width] of [[colours.ground, 5], [colours.bad, 2]]) {
    pen.strokeStyle = colour;
    pen.lineWidth = width;
    pen.beginPath();
    pen.moveTo(at - r, y - r); pen.lineTo(at + r, y + r); pen.moveTo(at + r, y - r); pen.lineTo(at - r, y + r);
    pen.stroke();
  }
}

function drawGeneration(g, y, height) {
  const { left, width } = bar(g.t0, g.t1, y + 2, height - 4, g.number % 2 ? colours.panel : colours.band);
  pen.strokeStyle = colours.line;
  pen.lineWidth = 1;
  pen.strokeRect(left + 0.5, y + 2.5, Math.max(width - 1, 0), height - 5);
  const text = `generation ${g.number} · ${g.members}`;
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = colours.text;
  if (pen.measureText(text).width < width - 8) pen.fillText(text, left + 4, y + height / 2);
  else if (pen.measureText(String(g.number)).width < width - 4) pen.fillText(String(g.number), left + 2, y + height / 2);
  if (g === state.focus || g === state.hover) frame(left, y + 1, width, height - 2, g === state.focus);
}

function inWindow(list) { return list.filter((item) => item.t0 <= state.t1 && item.t1 >= state.t0); }

function drawLabel(row, y) {
  const wide = row.kind === "group";
  if (!wide) {
    pen.fillStyle = colours.ground;
    pen.fillRect(0, y, GUTTER, row.height);
  }
  pen.font = wide ? "600 13px system-ui, sans-serif" : `${row.note ? 11 : Math.max(9, Math.min(12, row.height))}px system-ui, sans-serif`;
  if (wide) { // the lines of faults do not run through it
    pen.fillStyle = colours.panel;
    pen.fillRect(0, y, Math.max(pen.measureText(row.label).width + 12, GUTTER), row.height);
  }
  pen.fillStyle = wide ? colours.text : colours.quiet;
  if (row.note) { // a curve: what it shows, and its greatest value
    pen.fillText(row.note, 6, y + row.height / 2 + 7);
    pen.fillStyle = colours.text;
  }
  pen.fillText(wide ? row.label : shorten(row.label, GUTTER - 12), 6, y + row.height / 2 - (row.note ? 6 : 0));
}

function shorten(text, width) {
  let shown = text;
  while (shown.length > 3 && pen.measureText(shown).width > width) shown = `${shown.slice(0, -2)}…`;
  return shown;
}

function tick(least) {
  const second = 1e6;
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5,
    ...[1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400].map((s) => s * second)];
  return steps.find((step) => step >= least) || Math.ceil(least / (86400 * second)) * 86400 * second;
}

function stamp(us, unit = 1000) {
  const whole = Math.floor(us / 1e6), two = (n) => String(n).padStart(2, "0");
  const text = `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  const digits = unit >= 1e6 ? 0 : unit >= 1000 ? 3 : 6;
  return digits ? `${text}.${String(Math.floor(us % 1e6)).padStart(6, "0").slice(0, digits)}` : text;
}

function span(us) {
  if (us < 1e6) return `${(us / 1000).toFixed(us < 1e4 ? 1 : 0)}ms`;
  if (us < 6e7) return `${(us / 1e6).toFixed(2)}s`;
  const s = Math.round(us / 1e6);
  return `${s >= 3600 ? `${Math.floor(s / 3600)}h` : ""}${Math.floor(s / 60) % 60}m${s % 60}s`;
}
