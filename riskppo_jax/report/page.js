"use strict";
// Ties the page together: one lane is chosen at a time, by the list, the table or a point of the frontier.
const DATA = JSON.parse(document.getElementById("data").textContent);
const REPLAYS = JSON.parse(document.getElementById("replays").textContent);
const $ = id => document.getElementById(id);
let chosen = 0, constraint = 0, replay = null;

const late = values => Math.max(0, ...values.slice(values.length >> 1));  // the early, wild part may leave the frame

function panels() {
  const lane = DATA.lanes[chosen], c = lane.constraints[constraint], curve = lane.reward_curve;
  const last = lane.reward_after ?? curve.steps[curve.steps.length - 1] ?? 0;
  chart($("panel-reward"), {
    title: "Reward", xlabel: "environment steps", ylabel: "return of an episode",
    lines: [{x: curve.steps, y: curve.value, color: PALETTE[0],
             label: curve.kind === "evaluation" ? "evaluation episodes during training" : "training episodes"}],
    points: lane.reward === null ? [] : [{x: last, y: lane.reward, ys: [lane.reward - lane.reward_std, lane.reward + lane.reward_std],
      color: PALETTE[1], tip: `final evaluation ${show(lane.reward)} +- ${show(lane.reward_std)}`}],
    note: lane.reward === null ? "" : `Final evaluation: ${show(lane.reward)} (standard deviation over episodes ${show(lane.reward_std)}).`,
  });
  for (const id of ["panel-t", "panel-lam", "panel-law"]) $(id).hidden = !c;
  if (!c) return;
  const k = c.curves, minus = a => a.map(v => -v), tells = k.t.steps.length > 0;  // the mean's t does not enter
  chart($("panel-t"), {
    title: !tells ? `${c.symbol} and its limit` : c.best_t === "quantile" ? "-t and the quantile it estimates" : "-t and its best value", xlabel: "environment steps", ylabel: c.name,
    lines: [...(tells ? [{x: k.t_batch.steps, y: minus(k.t_batch.value), color: PALETTE[1], label: `${c.best_t} of the batch`, width: 1.5},
                         {x: k.t.steps, y: minus(k.t.value), color: PALETTE[0], label: "-t", width: 2.5}] : []),
            {x: k.risk.steps, y: k.risk.value, color: PALETTE[2], label: `${c.symbol} of the batch`, width: 1.5},
            ...(k.limit ? [{x: k.limit.steps, y: k.limit.value, color: "#6b7785", dash: "2 4", label: "limit on its way"}] : [])],
    across: [{at: c.threshold, color: "#6b7785", label: "limit c"}], zero: c.threshold > 0,
    top: c.threshold > 0 ? Math.max(2.5 * c.threshold, 1.2 * late(k.risk.value), 1.2 * late(minus(k.t_batch.value)), k.limit ? 1.05 * Math.max(...k.limit.value) : 0) : undefined,
  });
  chart($("panel-lam"), {
    title: "lambda, the price of the constraint", xlabel: "environment steps", ylabel: "lambda", zero: true,
    lines: [{x: k.lam.steps, y: k.lam.value, color: PALETTE[0], label: "lambda"}],
  });
  chart($("panel-law"), {
    title: `What is constrained: ${c.name} of a step`, xlabel: c.name, ylabel: "density", zero: true,
    bars: c.histogram ? {edges: c.histogram.edges, heights: c.histogram.density, color: PALETTE[0]} : undefined,
    down: [{at: c.threshold, color: "#6b7785", dash: "7 5", label: `limit c ${show(c.threshold)}`},
           {at: c.quantile, color: PALETTE[1], label: `${c.best_t} ${show(c.quantile)}`},
           {at: c.minus_t, color: PALETTE[0], dash: "2 4", label: `-t ${show(c.minus_t)}`},
           {at: c.risk, color: PALETTE[2], label: `${c.symbol} ${show(c.risk)}`}],
    note: "Every step of the final evaluation.",
  });
}

function frontier() {
  if (!$("frontier")) return;
  const axis = $("frontier-x").value, keys = [...new Set(DATA.lanes.map(group))], limits = new Set();
  const points = DATA.lanes.flatMap((lane, i) => {
    const c = lane.constraints[Math.min(constraint, lane.constraints.length - 1)];
    const x = axis === "risk" ? (c ? c.risk : null) : lane.point[axis];
    if (typeof x !== "number" || lane.reward === null) return [];
    if (axis === "risk") limits.add(c.threshold);
    return [{x, y: lane.reward, xs: axis === "risk" ? c.ci : undefined, big: i === chosen, pick: () => choose(i),
      ys: [lane.reward - lane.reward_std, lane.reward + lane.reward_std], color: PALETTE[keys.indexOf(group(lane)) % PALETTE.length],
      tip: `${lane.label}\nreward ${show(lane.reward)}` + (c ? `\n${c.symbol} ${show(c.risk)} (limit ${show(c.threshold)})` : "")}];
  });
  chart($("frontier"), {
    title: axis === "risk" ? "Frontier: what reward costs in risk" : `Reward over ${axis}`,
    xlabel: axis === "risk" ? "risk of the constrained quantity" : axis, ylabel: "reward of an episode", points,
    lines: keys.map((key, i) => ({x: [], y: [], color: PALETTE[i % PALETTE.length], label: key})),
    down: [...limits].map(at => ({at, color: "#6b7785", dash: "7 5", label: `limit ${show(at)}`})),
    note: "A point is a lane: bars are the 95% interval of the risk and the spread of the return. Click to choose it.",
  });
}

function group(lane) {
  const rest = Object.entries(lane.point).filter(([name]) => name !== "seed");
  const words = rest.map(([name, value]) => `${name.split(".").pop()} ${show(value)}`).join(", ");
  const many = new Set(DATA.lanes.map(l => l.env + l.algo)).size > 1;
  return [many ? `${lane.env}, ${lane.algo}` : "", words].filter(Boolean).join(", ") || "all lanes";
}

function learning() {
  if (!$("learning")) return;
  chart($("learning"), {
    title: "Learning curves", xlabel: "environment steps", ylabel: "return of an episode",
    lines: DATA.groups.map((g, i) => ({x: g.steps, y: g.mean, color: PALETTE[i % PALETTE.length],
      label: `${g.label} (${g.seeds} seed${g.seeds > 1 ? "s" : ""})`, dash: i >= PALETTE.length ? "7 5" : ""})),
    bands: DATA.groups.map((g, i) => ({x: g.steps, low: g.low, high: g.high, color: PALETTE[i % PALETTE.length]})),
    note: "Mean over seeds; the band reaches from the lowest to the highest seed.",
  });
}

function choose(i) {
  chosen = i;
  const lane = DATA.lanes[i];
  $("lane").value = i;
  const list = $("constraint");
  list.innerHTML = lane.constraints.map((c, k) => `<option value="${k}">${safe(c.name)}</option>`).join("");
  list.parentElement.hidden = lane.constraints.length < 2;
  constraint = Math.min(constraint, Math.max(lane.constraints.length - 1, 0));
  list.value = constraint;
  document.querySelectorAll("#met [data-lane]").forEach(e => { e.hidden = +e.dataset.lane !== i; });
  document.querySelectorAll("#lanes tbody tr").forEach(e => e.classList.toggle("chosen", +e.dataset.row === i));
  document.body.dataset.lane = i;
  panels(); frontier(); film();
}

function film() {
  const section = $("replay"); if (!section) return;
  const data = REPLAYS[chosen];
  section.querySelector("canvas").hidden = section.querySelector(".controls").hidden = !data;
  section.querySelector(".none").hidden = Boolean(data);
  if (!data) return;
  if (!replay) replay = new Replay(section.querySelector("canvas"), $("frame"), $("play"));
  replay.load(data);
}

function table() {
  const body = document.querySelector("#lanes tbody");
  document.querySelectorAll("#lanes th button").forEach((button, column) => button.addEventListener("click", () => {
    const head = button.parentElement, rising = head.getAttribute("aria-sort") !== "ascending";
    document.querySelectorAll("#lanes th").forEach(th => th.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)], [u, v] = [parseFloat(x), parseFloat(y)];
      if (x === "" || y === "") return (x === "") - (y === "");  // blanks last, either way
      const order = Number.isNaN(u) || Number.isNaN(v) ? x.localeCompare(y) : u - v;
      return rising ? order : -order;
    };
    [...body.rows].sort(compare).forEach(row => body.append(row));
  }));
  body.addEventListener("click", event => { const row = event.target.closest("tr"); if (row) choose(+row.dataset.row); });
  $("filter").addEventListener("input", event => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const row of body.rows) {
      row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
      count += !row.hidden;
    }
    $("count").textContent = `${count} of ${body.rows.length} lanes`;
  });
}

$("lane").addEventListener("change", event => choose(+event.target.value));
$("constraint").addEventListener("change", event => { constraint = +event.target.value; panels(); frontier(); });
if ($("frontier-x")) $("frontier-x").addEventListener("change", frontier);
table(); learning(); choose(0);
if (replay && !matchMedia("(prefers-reduced-motion: reduce)").matches) replay.play(true);
document.body.dataset.ready = "yes";
