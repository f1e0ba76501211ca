"use strict";
// Small charts as SVG text: lines, bands, bars, points, limits. Everything is drawn from numbers in the page.
const PALETTE = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#6b7785"];
const W = 480, H = 290, LEFT = 58, RIGHT = 14, TOP = 10, BOTTOM = 40;

function ticks(low, high, count) {
  const span = high - low || 1, raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map(m => m * power).find(s => s >= raw);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * span; k++) found.push(k * step);
  return found;
}

function show(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (typeof value !== "number") return Array.isArray(value) ? value.map(show).join(" ") : String(value);
  const size = Math.abs(value);
  if (size >= 1e6) return +(value / 1e6).toPrecision(4) + "M";
  if (size >= 1e4) return +(value / 1e3).toPrecision(4) + "k";
  return String(+value.toPrecision(4));
}

function safe(text) {
  return String(text).replace(/[&<>"]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"})[c]);
}

function chart(figure, spec) {
  const known = list => (list || []).filter(s => s.at !== null && Number.isFinite(s.at));
  spec.across = known(spec.across); spec.down = known(spec.down);
  const lines = spec.lines || [], bands = spec.bands || [], points = spec.points || [], bars = spec.bars;
  const xs = [], ys = [];
  lines.forEach(s => { xs.push(...s.x); ys.push(...s.y); });
  bands.forEach(s => { xs.push(...s.x); ys.push(...s.low, ...s.high); });
  points.forEach(p => { xs.push(p.x, ...(p.xs || [])); ys.push(p.y, ...(p.ys || [])); });
  if (bars) { xs.push(bars.edges[0], bars.edges[bars.edges.length - 1]); ys.push(0, ...bars.heights); }
  (spec.across || []).forEach(s => ys.push(s.at));
  (spec.down || []).forEach(s => xs.push(s.at));
  const good = a => a.filter(v => v !== null && Number.isFinite(v));
  const range = (all, zero) => {
    const v = good(all);
    let low = v.length ? Math.min(...v) : 0, high = v.length ? Math.max(...v) : 1;
    if (zero) low = Math.min(low, 0);
    const pad = (high - low || Math.abs(high) || 1) * 0.05;
    return [zero && low >= 0 ? 0 : low - pad, high + pad];
  };
  let [x0, x1] = bars ? [bars.edges[0], bars.edges[bars.edges.length - 1]] : range(xs);
  let [y0, y1] = range(ys, spec.zero);
  if (spec.top !== undefined && y1 > spec.top) y1 = spec.top;
  const X = v => LEFT + (v - x0) / (x1 - x0) * (W - LEFT - RIGHT);
  const Y = v => H - BOTTOM - (v - y0) / (y1 - y0) * (H - TOP - BOTTOM);
  const clip = "c" + Math.random().toString(36).slice(2);
  let out = `<svg viewBox="0 0 ${W} ${H}" role="img" aria-label="${safe(spec.title)}"><clipPath id="${clip}">` +
    `<rect x="${LEFT}" y="${TOP}" width="${W - LEFT - RIGHT}" height="${H - TOP - BOTTOM}"/></clipPath>`;
  for (const v of ticks(y0, y1, 5)) out += `<line class="axis" x1="${LEFT}" x2="${W - RIGHT}" y1="${Y(v)}" y2="${Y(v)}"/>` +
    `<text x="${LEFT - 6}" y="${Y(v) + 4}" text-anchor="end">${show(v)}</text>`;
  for (const v of ticks(x0, x1, 6)) out += `<text x="${X(v)}" y="${H - BOTTOM + 16}" text-anchor="middle">${show(v)}</text>`;
  out += `<text x="${(LEFT + W - RIGHT) / 2}" y="${H - 6}" text-anchor="middle">${safe(spec.xlabel || "")}</text>` +
    `<text transform="translate(13 ${(H - BOTTOM + TOP) / 2}) rotate(-90)" text-anchor="middle">${safe(spec.ylabel || "")}</text>` +
    `<line class="frame" x1="${LEFT}" x2="${W - RIGHT}" y1="${H - BOTTOM}" y2="${H - BOTTOM}"/><g clip-path="url(#${clip})">`;
  if (bars) bars.heights.forEach((h, i) => {
    const a = X(bars.edges[i]), b = X(bars.edges[i + 1]);
    out += `<rect x="${a}" y="${Y(h)}" width="${Math.max(b - a - 0.5, 0.5)}" height="${Y(0) - Y(h)}" fill="${bars.color}" fill-opacity=".4"/>`;
  });
  for (const s of bands) {
    const forth = s.x.map((x, i) => `${X(x)},${Y(s.high[i])}`), back = s.x.map((x, i) => `${X(x)},${Y(s.low[i])}`).reverse();
    out += `<polygon points="${forth.concat(back).join(" ")}" fill="${s.color}" fill-opacity=".18"/>`;
  }
  for (const s of lines) out += `<polyline points="${s.x.map((x, i) => `${X(x)},${Y(s.y[i])}`).join(" ")}" fill="none" ` +
    `stroke="${s.color}" stroke-width="${s.width || 2}" stroke-dasharray="${s.dash || ""}" stroke-linejoin="round"/>`;
  for (const s of lines) if (s.x.length === 1) out += `<circle cx="${X(s.x[0])}" cy="${Y(s.y[0])}" r="4" fill="${s.color}"/>`;
  for (const s of spec.across || []) out += `<line x1="${LEFT}" x2="${W - RIGHT}" y1="${Y(s.at)}" y2="${Y(s.at)}" stroke="${s.color}" stroke-width="2" stroke-dasharray="${s.dash || "7 5"}"/>`;
  for (const s of spec.down || []) out += `<line y1="${TOP}" y2="${H - BOTTOM}" x1="${X(s.at)}" x2="${X(s.at)}" stroke="${s.color}" stroke-width="2" stroke-dasharray="${s.dash || ""}"/>`;
  points.forEach((p, i) => {
    if (p.xs) out += `<line x1="${X(p.xs[0])}" x2="${X(p.xs[1])}" y1="${Y(p.y)}" y2="${Y(p.y)}" stroke="${p.color}" stroke-opacity=".6"/>`;
    if (p.ys) out += `<line x1="${X(p.x)}" x2="${X(p.x)}" y1="${Y(p.ys[0])}" y2="${Y(p.ys[1])}" stroke="${p.color}" stroke-opacity=".6"/>`;
    out += `<circle data-i="${i}" cx="${X(p.x)}" cy="${Y(p.y)}" r="${p.big ? 8 : 5}" fill="${p.color}" ` +
      `stroke="var(--ink)" stroke-width="${p.big ? 2.5 : 0.8}"${p.pick ? ' style="cursor:pointer"' : ""}/>`;
  });
  out += `</g><line class="cross axis" y1="${TOP}" y2="${H - BOTTOM}" visibility="hidden"/></svg>`;
  const keys = [...lines, ...(spec.across || []), ...(spec.down || [])].filter(s => s.label);
  const legend = keys.map(s => `<span><i style="border-top-color:${s.color};border-top-style:` +
    `${s.dash ? (s.dash.startsWith("2") ? "dotted" : "dashed") : "solid"}"></i>${safe(s.label)}</span>`).join("");
  figure.innerHTML = `<figcaption>${safe(spec.title)}</figcaption>${out}<div class="legend">${legend}</div>` +
    (spec.note ? `<p>${safe(spec.note)}</p>` : "") + `<div class="tip" hidden></div>`;
  hover(figure, lines, points, {X, x0, x1});
}

function hover(figure, lines, points, {X, x0, x1}) {
  const svg = figure.querySelector("svg"), tip = figure.querySelector(".tip"), cross = figure.querySelector(".cross");
  const hide = () => { tip.hidden = true; cross.setAttribute("visibility", "hidden"); };
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), px = (event.clientX - box.left) / box.width * W;
    const over = event.target.dataset && event.target.dataset.i;
    let text = "";
    if (over !== undefined) text = points[+over].tip || "";
    else if (lines.length && lines[0].x.length) {
      const x = x0 + (px - LEFT) / (W - LEFT - RIGHT) * (x1 - x0);
      const near = s => s.x.reduce((best, v, i) => Math.abs(v - x) < Math.abs(s.x[best] - x) ? i : best, 0);
      text = show(lines[0].x[near(lines[0])]) + " steps\n" + lines.map(s => `${s.label || ""} ${show(s.y[near(s)])}`).join("\n");
      cross.setAttribute("visibility", "visible"); cross.setAttribute("x1", px); cross.setAttribute("x2", px);
    }
    if (!text) return hide();
    tip.textContent = text; tip.hidden = false;
    const left = event.clientX - figure.getBoundingClientRect().left;
    tip.style.left = Math.min(left + 12, Math.max(0, box.width - tip.offsetWidth)) + "px";
    tip.style.top = event.clientY - figure.getBoundingClientRect().top + 14 + "px";
  });
  svg.addEventListener("click", event => {
    const i = event.target.dataset && event.target.dataset.i;
    if (i !== undefined && points[+i].pick) points[+i].pick();
  });
}
