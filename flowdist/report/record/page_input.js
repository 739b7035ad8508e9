/* ---- what an item is, in words: for the pointer, for the keyboard, for a screen reader ---- */

function decision(index) {
  if (index < 0) return [];
  const [n, t, event, reason] = DATA.decisions[index];
  return [["Decision", reason || "nothing was said"], [`Event ${n}, at ${stamp(t)}`, event]];
}

function describe(item) {
  const from = stamp(item.t0), lasted = `${from} to ${stamp(item.t1)}, ${span(item.t1 - item.t0)}`;
  switch (item.kind) {
    case "attempt": return describeAttempt(item, lasted);
    case "generation": {
      const title = `${DATA.worlds[item.world][0]}: generation ${item.number}`;
      return [title, [["Time", lasted], ...clockOf(item.t0, item.t1), ["Replicas", String(item.members)], ...decision(item.decision)]];
    }
    case "incident": {
      const did = item.stepped === null ? item.result || "still open" : `${item.result}: re-formed`;
      const stepped = item.stepped === null ? "" : `, first step after ${span(item.stepped - item.t0)}`;
      const result = `${did}${item.t1 < end || item.result ? ` after ${span(item.t1 - item.t0)}` : ""}${stepped}`;
      const paid = item.charged ? `charged to ${item.charged}` : "not counted";
      return [`Incident ${item.number}: ${item.root}`, [["At", from], ...clockOf(item.t0), ["Reason", item.reason], ["Kind", item.cause],
        ["Result", `${result}, ${paid}; ${item.restarted} restarted${item.stayed ? `, ${item.stayed} stayed in place` : ""}`], ...decision(item.decision)]];
    }
    case "unsaved": {
      const title = `Not saved: ${DATA.worlds[item.world][0]} at step ${item.step}`;
      return [title, [["At", from], ...clockOf(item.t0), ["Reason", item.reason]]];
    }
    case "cluster": return describeCluster(item);
    case "fold": return [`${item.count} ${item.what} without failure`, [["", "They are folded. Click, or press Enter, to see a lane for each."]]];
    default: return [`Fault ${item.spec}`, [["At", from], ...clockOf(item.t0), ["Hits", item.target]]];
  }
}

const LISTED = 12;

function counted(words) {
  const counts = new Map();
  for (const word of words) counts.set(word, (counts.get(word) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]).map(([word, n]) => `${n} ${word}`).join(", ");
}

function describeCluster({ of, t0, t1, marks: list }) {
  const facts = [["Between", `${stamp(t0)} and ${stamp(t1)}, ${span(t1 - t0)}`], ...clockOf(t0, t1)];
  if (of === "incident") facts.push(["By cause", counted(list.map((i) => i.cause))], ["By root", counted(list.map((i) => i.root.split("/")[0]))]);
  for (const item of list.slice(0, LISTED)) facts.push([stamp(item.t0), of === "incident" ? `incident ${item.number}: ${item.reason}` : item.spec ?? `not saved: ${item.reason}`]);
  if (list.length > LISTED) facts.push(["", `and ${list.length - LISTED} more`]);
  facts.push(["", "Press Enter, or click twice, to zoom in."]);
  return [`${list.length} ${of}s`, facts];
}

function brief(item) { // for the pointer: what the panel begins with; a click shows the rest there
  const [title, facts] = describe(item), wanted = ["Time", "At", "Between", "By cause", "Hits", "Outcome", "Lost work", "Unsaved at the end", "Hangs", "Reason", "Decision", ""];
  return [title, facts.filter(([term]) => wanted.includes(term) && (term || item.kind === "fold"))];
}

function describeRun() {
  const facts = [["Time", span(end)], ...clockOf(0, end)];
  if (DATA.goodput) facts.push(["Where the time went", DATA.goodput]);
  for (const [name, ns] of DATA.lost) facts.push([`Lost work of ${name}`, span(ns)]);
  if (incidents.length) facts.push(["Incidents, by cause", counted(incidents.map((i) => i.cause))]);
  const longest = incidents.reduce((worst, i) => (worst && worst.t1 - worst.t0 >= i.t1 - i.t0 ? worst : i), null);
  if (longest) facts.push(["The longest", `incident ${longest.number} at ${stamp(longest.t0)}, ${span(longest.t1 - longest.t0)}: ${longest.reason}`]);
  return ["The run", [...facts, ["", "Point at a bar or a mark, or use the arrow keys."]]];
}

function describeAttempt(a, lasted) {
  const g = a.generation, ended = DATA.end > a.t1 || a.how !== 0;
  const facts = [["Node", DATA.nodes[a.node]], ["Generation", `${g.number} of ${DATA.worlds[g.world][0]}, rank ${a.rank}, ${g.members} member${g.members === 1 ? "" : "s"}`], ["Time", lasted], ...clockOf(a.t0, a.t1)];
  const moments = [["starting", a.t0], ["running", a.running], ["ready", a.ready], ["stopping", a.stopping]].filter(([, t]) => t !== null);
  facts.push(["Phases", moments.map(([phase, t], i) => `${phase} ${span((i + 1 < moments.length ? moments[i + 1][1] : a.t1) - t)}`).join(", ")]);
  facts.push(["Outcome", ended ? HOW[a.how] : HOW[0]]);
  if (a.step >= 0) facts.push(["Last step reported", String(a.step)]);
  if (a.left >= 0) facts.push(["Left in order", `at step ${a.left}: nothing is lost`]);
  if (a.hung !== null) {
    const found = incidents.some((i) => i.cause === "hang" && i.t0 >= a.hung && i.t0 <= a.t1);
    const [role, , watched] = DATA.roles[DATA.replicas[a.replica][0]];
    const why = found ? "" : watched ? ": not noticed" : `: nothing notices it, because ${role} has no hang_after`;
    facts.push(["Hangs", `since ${stamp(a.hung)}${why}`]);
  }
  if (a.lost !== null) facts.push([a.unsaved ? "Unsaved at the end" : "Lost work", `${span(a.lostTo - a.lost)}, since ${stamp(a.lost)}`]);
  return [`${names[a.replica]}, attempt ${a.number}`, [...facts, ...decision(a.decision)]];
}

function show(element, item) { tell(element, item ? describe(item) : describeRun()); }

function tell(element, [title, facts]) {
  element.replaceChildren();
  const heading = document.createElement("h2"), list = document.createElement("dl");
  heading.textContent = title;
  for (const [term, text] of facts) {
    const dt = document.createElement("dt"), dd = document.createElement("dd");
    dt.textContent = term;
    dd.textContent = text;
    list.append(dt, dd);
  }
  element.append(heading, list);
}

/* ---- pointing ---- */

function itemAt(px, py) {
  const y = py < HEAD ? py : py + scroller.scrollTop;
  const row = rows.find((r) => (r.kind === "events") === (py < HEAD) && y >= r.y && y < r.y + r.height);
  if (!row || px < GUTTER - 6) return null;
  if (row.kind === "events") return markAt(px, py);
  const t = time(px), slack = (state.t1 - state.t0) / (size.width - GUTTER) * 2;
  return inView(row.items).find((item) => item.t0 - slack <= t && t <= item.t1 + slack) || null;
}

function readingAt(px, py) { // of a curve
  const row = py < HEAD || px < GUTTER ? null : rows.find((r) => r.kind === "curve" && py + scroller.scrollTop >= r.y && py + scroller.scrollTop < r.y + r.height);
  const t = time(px), value = row && t >= 0 && t <= end ? valueAt(row, t) : null;
  return value === null ? null : [`${row.label}: ${row.text(value)}`, [["At", stamp(t)], ...clockOf(t)]];
}

function hover(event) {
  const box = canvas.getBoundingClientRect(), tip = $("tip"), at = [event.clientX - box.left, event.clientY - box.top];
  const item = itemAt(...at);
  if (item !== state.hover) { state.hover = item; redraw(); }
  const words = item ? (item === state.focus ? null : brief(item)) : readingAt(...at); // what is selected is in the panel
  tip.hidden = !words;
  if (!words) return;
  tell(tip, words);
  const right = event.clientX + 16 + tip.offsetWidth > innerWidth, low = event.clientY + 16 + tip.offsetHeight > innerHeight;
  tip.style.left = `${Math.max(4, right ? event.clientX - tip.offsetWidth - 12 : event.clientX + 16)}px`;
  tip.style.top = `${Math.max(4, low ? event.clientY - tip.offsetHeight - 12 : event.clientY + 16)}px`;
}

let selected = () => {}; // called with each item that was selected

function select(item, isFar = false) { // `isFar`: scroll to it, and unfold its lane
  if (item && item.kind === "fold" && !isFar) { unfold(item.group); return; }
  state.focus = item;
  show($("details"), item);
  selected(item);
  if (item && isFar) {
    reveal(item);
    const row = rows.find((r) => r.items.includes(item)), width = state.t1 - state.t0;
    if (item.t1 < state.t0 || item.t0 > state.t1) window_(item.t0 - width / 2, item.t0 + width / 2);
    if (row && row.kind !== "events") {
      const top = scroller.scrollTop, room = size.height - HEAD;
      if (row.y - HEAD < top) scroller.scrollTop = row.y - HEAD - 22;
      else if (row.y + row.height > top + HEAD + room) scroller.scrollTop = row.y + row.height - size.height + 8;
    }
  }
  redraw();
}

function window_(t0, t1) {
  const width = Math.min(Math.max(t1 - t0, 20), end * 1.02);
  const from = Math.min(Math.max(t0, -end * 0.01), end * 1.01 - width);
  state.t0 = from;
  state.t1 = from + width;
  redraw();
}

function zoom(factor, around) {
  const middle = around ?? (state.focus ? Math.min(Math.max(state.focus.t0, state.t0), state.t1) : (state.t0 + state.t1) / 2);
  window_(middle - (middle - state.t0) * factor, middle + (state.t1 - middle) * factor);
}

function fit() { window_(0, end); }

function pan(share) { const width = state.t1 - state.t0; window_(state.t0 + share * width, state.t1 + share * width); }

/* ---- keys ---- */

function walk(step) {
  const row = rows.find((r) => r.items.includes(state.focus));
  if (!row) { enter(); return; }
  const at = row.items.indexOf(state.focus) + step;
  select(row.items[Math.min(Math.max(at, 0), row.items.length - 1)], true);
}

function climb(step) {
  const full = rows.filter((r) => r.items.length), at = full.findIndex((r) => r.items.includes(state.focus));
  if (at < 0) { enter(); return; }
  const row = full[Math.min(Math.max(at + step, 0), full.length - 1)], t = Math.min(Math.max(state.focus.t0, state.t0), state.t1);
  select(row.items.reduce((best, item) => (distance(item, t) < distance(best, t) ? item : best)), true);
}

function distance(item, t) { return t < item.t0 ? item.t0 - t : t > item.t1 ? t - item.t1 : 0; }

function enter() {
  const row = rows.find((r) => r.kind === "lane" && r.items.length) || rows.find((r) => r.items.length);
  if (row) select(row.items.find((item) => item.t1 >= state.t0) || row.items[0], true);
}

function hop(step, list = events) {
  if (!list.length) return;
  const at = list.indexOf(state.focus), t = state.focus ? state.focus.t0 : step > 0 ? -1 : Infinity; // of a cluster: its first
  const after = step > 0 ? list.findIndex((item) => item.t0 >= t) : list.findLastIndex((item) => item.t0 <= t);
  const next = at >= 0 ? Math.min(Math.max(at + step, 0), list.length - 1) : after;
  if (next >= 0) select(list[next], true);
}

function ends(last) {
  const row = rows.find((r) => r.items.includes(state.focus));
  if (row) select(row.items[last ? row.items.length - 1 : 0], true); else enter();
}

function open_() { // what is selected: a cluster, or lanes that are folded
  const item = state.focus;
  if (!item) return;
  if (item.kind === "fold") { unfold(item.group); return; }
  const room = Math.max((item.t1 - item.t0) * 0.2, end / 2000);
  window_(item.t0 - room, item.t1 + room);
}

function showAll(all) {
  state.all = $("all").checked = all;
  state.open.clear();
  layout();
}

function turn(view) {
  state.view = view;
  document.querySelector(`input[name=view][value=${view}]`).checked = true;
  layout();
}

const KEYS = {
  ArrowLeft: (e) => (e.shiftKey ? pan(-0.2) : walk(-1)), ArrowRight: (e) => (e.shiftKey ? pan(0.2) : walk(1)),
  ArrowUp: () => climb(-1), ArrowDown: () => climb(1), Home: () => ends(false), End: () => ends(true),
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), "0": fit, n: () => hop(1), p: () => hop(-1),
  f: () => showAll(!state.all), Enter: open_, v: () => turn(state.view === "role" ? "node" : "role"), Escape: () => select(null),
  PageUp: () => { scroller.scrollTop -= size.height / 2; }, PageDown: () => { scroller.scrollTop += size.height / 2; },
};

document.addEventListener("keydown", (event) => { // on the canvas, or where no control has the focus
  const act = KEYS[event.key];
  if (!act || ![canvas, document.body].includes(event.target) || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act(event);
});

let drag = null;
canvas.addEventListener("pointerdown", (event) => { drag = { at: event.clientX, t0: state.t0, t1: state.t1, moved: false }; });
addEventListener("pointerup", () => { if (drag) setTimeout(() => { drag = null; }); });
canvas.addEventListener("pointermove", (event) => {
  if (!drag || !event.buttons) { hover(event); return; }
  const far = event.clientX - drag.at;
  if (Math.abs(far) < 4 && !drag.moved) return;
  drag.moved = true;
  $("tip").hidden = true;
  const shift = far / (size.width - GUTTER) * (drag.t1 - drag.t0);
  window_(drag.t0 - shift, drag.t1 - shift);
});
canvas.addEventListener("pointerleave", () => { state.hover = null; $("tip").hidden = true; redraw(); });
canvas.addEventListener("click", (event) => {
  if (drag && drag.moved) return;
  const box = canvas.getBoundingClientRect();
  select(itemAt(event.clientX - box.left, event.clientY - box.top));
});
canvas.addEventListener("dblclick", open_);
canvas.addEventListener("wheel", (event) => {
  if (event.ctrlKey || event.metaKey) zoom(event.deltaY < 0 ? 0.8 : 1.25, time(event.clientX - canvas.getBoundingClientRect().left));
  else if (event.shiftKey) pan(Math.sign(event.deltaY || event.deltaX) * 0.15);
  else return;
  event.preventDefault();
}, { passive: false });

/* ---- tables, controls ---- */

const LIST_MAX = 2000;

function button(text, item) {
  const made = document.createElement("button");
  made.type = "button";
  made.textContent = text;
  made.addEventListener("click", () => {
    const half = Math.min(end / 2, Math.max(item.t1 - item.t0, end / 50));
    window_(item.t0 - half, item.t0 + half);
    select(item, true);
    canvas.focus();
  });
  return made;
}

function table(element, heads, records) {
  const made = document.createElement("table");
  const head = made.createTHead().insertRow();
  for (const text of heads) {
    const th = document.createElement("th");
    th.scope = "col";
    th.textContent = text;
    head.append(th);
  }
  const body = made.createTBody();
  for (const cells of records.slice(0, LIST_MAX)) {
    const row = body.insertRow();
    for (const cell of cells) row.insertCell().append(cell);
  }
  element.replaceChildren(made);
  if (records.length > LIST_MAX) element.append(`${records.length - LIST_MAX} more are not listed`);
}

$("incident-list").addEventListener("toggle", (event) => {
  if (!event.target.open) return;
  table(event.target.lastElementChild, ["Time", "What", "Why", "Result"], events.map((item) => {
    const [title, facts] = describe(item), known = Object.fromEntries(facts);
    return [button(stamp(item.t0), item), title, known.Reason || `hits ${known.Hits}`, known.Result || ""];
  }));
});

$("decision-list").addEventListener("toggle", (event) => {
  if (!event.target.open) return;
  const decided = DATA.decisions.filter(([, , , reason]) => reason);
  table(event.target.lastElementChild, ["Time", "Event", "What happened", "What was decided"],
    decided.map(([n, t, what, reason]) => [stamp(t), String(n), what, reason]));
});

for (const input of document.querySelectorAll("input[name=view]")) input.addEventListener("change", () => turn(input.value));
$("filter").addEventListener("input", (event) => { state.filter = event.target.value; layout(); });
$("all").addEventListener("change", (event) => showAll(event.target.checked));
$("height").addEventListener("input", (event) => { state.height = Number(event.target.value); layout(); });
$("zoom-in").addEventListener("click", () => zoom(0.6));
$("zoom-out").addEventListener("click", () => zoom(1 / 0.6));
$("fit").addEventListener("click", fit);
$("next").addEventListener("click", () => hop(1, incidents));
$("previous").addEventListener("click", () => hop(-1, incidents));
$("theme").addEventListener("change", (event) => {
  if (event.target.value) document.documentElement.dataset.theme = event.target.value;
  else delete document.documentElement.dataset.theme;
  readColours();
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); redraw(); });
scroller.addEventListener("scroll", redraw);
new ResizeObserver(resize).observe(scroller);

load(JSON.parse($("data").textContent));
readColours();
resize();
layout();
const lanes = rows.filter((row) => row.kind === "lane").length;
state.height = lanes <= 12 ? 26 : lanes <= 60 ? 18 : 12;
$("height").value = state.height;
layout();
fit();
show($("details"), null);
document.documentElement.dataset.ready = "yes";
