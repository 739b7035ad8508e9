/* ---- the head: time, wall clock, faults and incidents; marks that would overlap are one cluster with a number ---- */

const NEAR = 14, REACH = 60, WIDE = 34, FOLD_OVER = 8;

function clock(t) { // what the wall clock showed; null: a simulation
  const known = DATA.clock.findLast(([from]) => from <= t);
  if (!known) return null;
  const [from, ms, offset] = known;
  return new Date(ms + (t - from) / 1000 + offset * 60000).toISOString().replace("T", " ").slice(0, 19);
}

function clockOf(from, to = null) { // as a fact about an item: none in a simulation
  const one = clock(from), other = to === null ? null : clock(to);
  if (one === null) return [];
  return [["By the clock", other === null || other === one ? one : `${one} to ${other.slice(0, 10) === one.slice(0, 10) ? other.slice(11) : other}`]];
}

let grouped = { key: "", clusters: [], alone: [] };

function marks() { // the clusters and the single marks of this view; the same objects until the view changes
  const key = [state.t0, state.t1, size.width, events.length, end].join();
  if (key === grouped.key) return grouped;
  grouped = { key, clusters: [], alone: [] };
  for (const of of ["incident", "fault"]) {
    let near = [];
    const close = () => {
      if (near.length > 1) grouped.clusters.push({ kind: "cluster", of, t0: near[0].t0, t1: near[near.length - 1].t0, marks: near });
      else grouped.alone.push(...near);
      near = [];
    };
    for (const item of events) {
      if ((item.kind === "incident") !== (of === "incident") || item.t0 > state.t1) continue;
      if (item.t0 < state.t0 && item.t1 < state.t0) continue;
      const far = near.length && (x(item.t0) - x(near[near.length - 1].t0) > NEAR || x(item.t0) - x(near[0].t0) > REACH);
      if (far) close();
      near.push(item);
    }
    close();
  }
  return grouped;
}

function levelOf(item) { return item.kind === "incident" || item.of === "incident" ? AXIS + MARKS - 12 : AXIS + 9; }

function drawLines() {
  const { clusters, alone } = marks();
  for (const item of [...clusters, ...alone]) {
    const isIncident = levelOf(item) !== levelOf({});
    pen.strokeStyle = pen.fillStyle = isIncident ? colours.incident : colours.bad;
    pen.lineWidth = 1;
    if (item.kind === "cluster") { // a line each would hide the lanes
      pen.globalAlpha = 0.1;
      pen.fillRect(x(item.t0), HEAD, Math.max(x(item.t1) - x(item.t0), 2), size.height);
      continue;
    }
    pen.globalAlpha = 0.5;
    pen.setLineDash(isIncident ? [] : [4, 3]);
    pen.beginPath();
    pen.moveTo(x(item.t0), HEAD);
    pen.lineTo(x(item.t0), size.height);
    pen.stroke();
    pen.setLineDash([]);
  }
  pen.globalAlpha = 1;
}

function drawHead() {
  pen.fillStyle = colours.panel;
  pen.fillRect(0, 0, size.width, HEAD);
  pen.font = "11px system-ui, sans-serif";
  pen.fillStyle = colours.quiet;
  pen.fillText("time of the job", 6, 9);
  if (DATA.clock.length) pen.fillText("clock", 6, 23);
  pen.fillText("faults", 6, levelOf({}));
  pen.fillText("incidents", 6, levelOf({ kind: "incident" }));
  drawTicks();
  pen.save();
  pen.beginPath();
  pen.rect(GUTTER - 6, AXIS, size.width - GUTTER + 6, MARKS);
  pen.clip();
  const { clusters, alone } = marks();
  for (const item of alone) drawMark(item);
  for (const item of clusters) drawCluster(item);
  if (state.focus && events.includes(state.focus) && !alone.includes(state.focus)) drawMark(state.focus);
  pen.restore();
}

function drawTicks() {
  const unit = tick((state.t1 - state.t0) / Math.max(2, (size.width - GUTTER) / 100));
  for (let t = Math.ceil(state.t0 / unit) * unit; t <= state.t1; t += unit) {
    pen.fillStyle = colours.quiet;
    pen.fillRect(x(t), AXIS - 6, 1, 6);
    const text = stamp(t, unit), wall = clock(t);
    if (x(t) + pen.measureText(text).width < size.width) pen.fillText(text, x(t) + 3, 9);
    const shown = wall === null ? "" : unit >= 8.64e10 ? wall.slice(5, 10) : wall.slice(11);
    if (shown && x(t) + pen.measureText(shown).width < size.width) pen.fillText(shown, x(t) + 3, 23);
  }
}

function drawMark(item) {
  const at = x(item.t0), y = levelOf(item), picked = item === state.focus || item === state.hover, r = picked ? 7 : 5;
  pen.fillStyle = item.kind === "incident" ? colours.incident : colours.bad;
  if (item.kind === "incident") pen.fillRect(at, y + 8, Math.max(x(item.t1) - at, 1), 2);
  pen.beginPath();
  if (item.kind !== "incident") { pen.moveTo(at - r, y - 5); pen.lineTo(at + r, y - 5); pen.lineTo(at, y + 5); }
  else { pen.moveTo(at, y - r - 1); pen.lineTo(at + r, y); pen.lineTo(at, y + r + 1); pen.lineTo(at - r, y); }
  pen.fill();
  if (picked) { pen.strokeStyle = colours.focus; pen.lineWidth = 2; pen.strokeRect(at - 9, y - 8, 18, 16); }
}

function placeOf(cluster) { // left edge and width of its label
  const text = String(cluster.marks.length), wide = Math.max(16, pen.measureText(text).width + 10);
  return { text, wide, left: Math.max(GUTTER - 6, (x(cluster.t0) + x(cluster.t1)) / 2 - wide / 2) };
}

function drawCluster(cluster) {
  pen.font = "600 11px system-ui, sans-serif";
  const y = levelOf(cluster), { text, wide, left } = placeOf(cluster);
  pen.fillStyle = cluster.of === "incident" ? colours.incident : colours.bad;
  pen.fillRect(x(cluster.t0), y - 1, x(cluster.t1) - x(cluster.t0), 2);
  pen.beginPath();
  pen.roundRect(left, y - 7, wide, 14, 7);
  pen.fill();
  pen.fillStyle = colours.onmark;
  pen.fillText(text, left + (wide - pen.measureText(text).width) / 2, y + 0.5);
  if (cluster === state.focus || cluster === state.hover) {
    pen.strokeStyle = colours.focus;
    pen.lineWidth = 2;
    pen.strokeRect(left - 2, y - 9, wide + 4, 18);
  }
}

function markAt(px, py) {
  const { clusters, alone } = marks(), isLower = py > AXIS + MARKS / 2;
  const inLevel = (item) => (levelOf(item) > AXIS + MARKS / 2) === isLower;
  const hit = clusters.find((item) => inLevel(item) && px >= Math.min(placeOf(item).left, x(item.t0)) - 2 && px <= Math.max(placeOf(item).left + placeOf(item).wide, x(item.t1)) + 2);
  if (hit) return hit;
  const near = alone.map((item) => [Math.abs(x(item.t0) - px) + (inLevel(item) ? 0 : 4), item]).filter(([d]) => d <= 10);
  near.sort((a, b) => a[0] - b[0]);
  return near.length ? near[0][1] : null;
}

/* ---- curves: the goodput so far, and the steps per second of each role ---- */

function addGoodput(add) {
  const points = DATA.curves.goodput;
  if (points.length < 2) return;
  const last = points[points.length - 1][1];
  add({ kind: "curve", height: WIDE, label: "goodput so far", note: `at the end ${last.toFixed(1)} %`, items: [], points, most: 100,
    text: (value) => `${value.toFixed(1)} %`, colour: "focus" });
}

function addSteps(add, role) {
  const found = DATA.curves.steps.find(([name]) => name === role);
  if (!found || state.view !== "role") return;
  const width = DATA.curves.width, most = Math.max(...found[1]);
  if (!most) return;
  const points = found[1].flatMap((rate, i) => [[i * width, rate], [Math.min((i + 1) * width, end), rate]]);
  add({ kind: "curve", height: WIDE, label: "steps per second", note: `at most ${rate(most)}`, items: [], points, most,
    text: rate, colour: "saved" });
}

function rate(value) { return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toPrecision(2).replace(/\.?0+$/, "") || "0"; }

function drawCurve(row, y) {
  const base = y + row.height - 4, height = row.height - 8, path = new Path2D();
  const shown = row.points.filter(([t], i) => (row.points[i + 1]?.[0] ?? t) >= state.t0 && (row.points[i - 1]?.[0] ?? t) <= state.t1);
  if (!shown.length) return;
  const at = ([t, value]) => [x(t), base - (value / row.most) * height];
  shown.forEach((point, i) => (i ? path.lineTo(...at(point)) : path.moveTo(...at(point))));
  pen.strokeStyle = pen.fillStyle = colours[row.colour];
  pen.lineWidth = 1.5;
  pen.stroke(path);
  path.lineTo(x(shown[shown.length - 1][0]), base);
  path.lineTo(x(shown[0][0]), base);
  pen.globalAlpha = 0.15;
  pen.fill(path);
  pen.globalAlpha = 1;
}

function valueAt(row, t) {
  const next = row.points.findIndex(([at]) => at >= t);
  if (next <= 0) return next ? null : row.points[0][1];
  const [[from, low], [to, high]] = [row.points[next - 1], row.points[next]];
  return to > from ? low + (high - low) * (t - from) / (to - from) : high;
}

/* ---- folded lanes: those of which nothing failed are one, which shows how many of them run ---- */

function isFolded(group, lanes) { return !state.all && !state.filter && lanes > FOLD_OVER && !state.open.has(group); }

function addFold(add, group, lanes) {
  const changes = lanes.flat().filter((a) => a.running !== null).flatMap((a) => [[a.running, 1], [a.t1, -1]]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let running = 0;
  const points = changes.map(([t, by]) => [t, (running += by)]);
  const item = { kind: "fold", group, t0: 0, t1: end, count: lanes.length, what: group === "nodes" ? "nodes" : "replicas" };
  add({ kind: "fold", height: 20, label: `+ ${lanes.length} without failure`, items: [item], points, most: points.reduce((most, [, n]) => Math.max(most, n), 1) });
}

function drawFold(row, y) {
  pen.fillStyle = colours.running;
  row.points.forEach(([t, running], i) => {
    const to = row.points[i + 1]?.[0] ?? t;
    if (to < state.t0 || t > state.t1 || running <= 0) return;
    const height = (row.height - 6) * Math.min(1, running / row.most);
    pen.fillRect(x(t), y + row.height - 3 - height, x(to) - x(t), height);
  });
  if (row.items[0] === state.focus || row.items[0] === state.hover) frame(GUTTER, y + 1, size.width - GUTTER, row.height - 3, row.items[0] === state.focus);
}

function unfold(group) {
  state.open.add(group);
  layout();
}

function reveal(item) { // have a lane for an attempt that is folded away
  if (item.kind !== "attempt" || rows.some((row) => row.items.includes(item))) return;
  unfold(state.view === "node" ? "nodes" : DATA.roles[DATA.replicas[item.replica][0]][0]);
}
