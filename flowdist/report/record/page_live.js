/* ---- live: the page follows a run that goes on, and shows the logs of an attempt ---- */

function keyOf(item) {
  if (!item) return "";
  const parts = { attempt: [item.replica, item.number], generation: [item.world, item.number], incident: [item.number] };
  return [item.kind, ...(parts[item.kind] || [item.t0, item.spec, item.reason])].join(" ");
}

function renew(data) {
  const key = keyOf(state.focus), whole = state.t0 <= 0 && state.t1 >= end, panel = $("details").scrollTop;
  load(data);
  const all = [...attempts, ...generations, ...events];
  state.hover = null;
  state.focus = all.find((item) => keyOf(item) === key) || null;
  document.querySelector(".summary").textContent = DATA.summary;
  layout();
  if (whole) fit();
  show($("details"), state.focus);
  showLogs(state.focus);
  $("details").scrollTop = panel;
}

async function follow() {
  for (let size = 0, run = "running"; run === "running";) {
    try {
      const answer = await fetch(`data?after=${size}`);
      const found = await answer.json();
      if (found.size !== size) renew(found.data);
      ({ size, state: run } = found);
      $("live").textContent = run === "running" ? "live" : run;
    } catch (error) {
      $("live").textContent = "the server of this page has ended";
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
}

async function showLogs(item) {
  if (!item || item.kind !== "attempt") return;
  const path = `logs?replica=${encodeURIComponent(names[item.replica])}&attempt=${item.number}`;
  const text = await fetch(path).then((answer) => answer.text(), () => "this page has no server any more: flowdist ui shows logs");
  if (keyOf(state.focus) !== keyOf(item)) return; // another item was selected meanwhile
  const old = $("details").querySelector("pre"), made = document.createElement("pre");
  made.textContent = text || "no output yet";
  if (old) old.replaceWith(made); else $("details").append(made);
  made.scrollTop = made.scrollHeight;
}

selected = showLogs;
follow();
