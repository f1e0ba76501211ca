"use strict";
// A recorded policy on a canvas: shapes from their poses, seen from an angle that can be dragged.
class Replay {
  constructor(canvas, slider, button) {
    Object.assign(this, {canvas, slider, button, frame: 0, playing: false, yaw: 0.35, pitch: 0.25, data: null});
    let from = null;
    canvas.addEventListener("pointerdown", e => { from = [e.clientX, e.clientY]; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointerup", () => { from = null; });
    canvas.addEventListener("pointermove", e => {
      if (!from) return;
      this.yaw += (e.clientX - from[0]) * 0.01;
      this.pitch = Math.max(0, Math.min(1.55, this.pitch + (e.clientY - from[1]) * 0.01));
      from = [e.clientX, e.clientY]; this.draw();
    });
    slider.addEventListener("input", () => { this.frame = +slider.value; this.draw(); });
    button.addEventListener("click", () => this.play(!this.playing));
  }

  load(data) {
    this.data = data; this.frame = 0;
    const bytes = Uint8Array.from(atob(data.poses), c => c.charCodeAt(0));
    const words = new Int16Array(bytes.buffer);
    this.poses = Float32Array.from(words, w => w / 32767);
    this.slider.max = data.frames - 1;
    this.pitch = data.planar ? 0.18 : 0.9; this.yaw = data.planar ? 0.3 : 0;
    this.follow = data.shapes.map((_, k) => {  // what moves is what the camera follows
      let low = [9e9, 9e9], high = [-9e9, -9e9];
      for (let f = 0; f < data.frames; f += 5) {
        const p = this.pose(f, k).p;
        low = [Math.min(low[0], p[0]), Math.min(low[1], p[1])]; high = [Math.max(high[0], p[0]), Math.max(high[1], p[1])];
      }
      return Math.hypot(high[0] - low[0], high[1] - low[1]) > 0.02;
    });
    if (!this.follow.some(x => x)) this.follow.fill(true);
    let far = 0.3, height = 0;
    for (let f = 0; f < data.frames; f += 10) {
      const center = this.center(f);
      data.shapes.forEach((s, k) => {
        const p = this.pose(f, k).p, size = Math.max(...s.size);
        if (this.follow[k] || !data.planar) far = Math.max(far, Math.hypot(p[0] - center[0], p[1] - center[1]) * 0.9 + size * 0.5);
        if (this.follow[k]) { far = Math.max(far, p[2] * 0.7 + size * 0.5); height = Math.max(height, p[2]); }
      });
    }
    this.far = Math.min(far, 4); this.height = height * 0.5; this.draw();
  }

  pose(f, k) {
    const at = (f * this.data.shapes.length + k) * 7, v = this.poses, r = this.data.reach;
    return {p: [v[at] * r, v[at + 1] * r, v[at + 2] * r], q: [v[at + 3], v[at + 4], v[at + 5], v[at + 6]]};
  }

  center(f) {
    const sum = [0, 0]; let n = 0;
    this.follow.forEach((yes, k) => { if (yes) { const p = this.pose(f, k).p; sum[0] += p[0]; sum[1] += p[1]; n++; } });
    return [sum[0] / n, sum[1] / n];
  }

  play(on) {
    if (on === this.playing || !this.data) return;
    this.playing = on; this.button.textContent = on ? "Pause" : "Play";
    let last = performance.now();
    const tick = now => {
      if (!this.playing) return;
      if (now - last >= 1000 / this.data.fps) {
        last = now; this.frame = (this.frame + 1) % this.data.frames; this.slider.value = this.frame; this.draw();
      }
      requestAnimationFrame(tick);
    };
    if (on) requestAnimationFrame(tick);
  }

  draw() {
    const d = this.data, g = this.canvas.getContext("2d"), w = this.canvas.width, h = this.canvas.height;
    const [cx, cy] = this.center(this.frame), px = Math.min(w, h) / (2.3 * this.far);
    const cos = Math.cos(this.yaw), sin = Math.sin(this.yaw), up = Math.cos(this.pitch), over = Math.sin(this.pitch);
    const project = p => {
      const x = p[0] - cx, y = p[1] - cy, z = p[2] - this.height;
      const side = x * cos + y * sin, deep = -x * sin + y * cos;
      return [w / 2 + side * px, h * 0.42 - (z * up + deep * over) * px, deep * up - z * over];
    };
    const sky = g.createLinearGradient(0, 0, 0, h);
    sky.addColorStop(0, "#dbe7f2"); sky.addColorStop(1, "#f5f7f9"); g.fillStyle = sky; g.fillRect(0, 0, w, h);
    const step = this.far > 2 ? 1 : 0.5, reach = Math.ceil(this.far * 2.2 / step);
    g.lineWidth = 1; g.strokeStyle = "#b9c4cf";
    for (let k = -reach; k <= reach; k++) {
      const gx = (Math.round(cx / step) + k) * step, gy = (Math.round(cy / step) + k) * step, r = reach * step;
      for (const [a, b] of [[[gx, cy - r, 0], [gx, cy + r, 0]], [[cx - r, gy, 0], [cx + r, gy, 0]]]) {
        const p = project(a), q = project(b);
        g.beginPath(); g.moveTo(p[0], p[1]); g.lineTo(q[0], q[1]); g.stroke();
      }
    }
    const order = d.shapes.map((s, k) => [s, this.pose(this.frame, k)]).map(([s, o]) => [project(o.p)[2], s, o]);
    order.sort((a, b) => b[0] - a[0]).forEach(([, s, o]) => this.shape(g, s, o, project, px));
    this.gauges(g, w, h);
  }

  shape(g, s, {p, q}, project, px) {
    const turn = v => {  // by a quaternion
      const [a, x, y, z] = q, t = [2 * (y * v[2] - z * v[1]), 2 * (z * v[0] - x * v[2]), 2 * (x * v[1] - y * v[0])];
      return [v[0] + a * t[0] + y * t[2] - z * t[1], v[1] + a * t[1] + z * t[0] - x * t[2], v[2] + a * t[2] + x * t[1] - y * t[0]];
    };
    const put = v => { const r = turn(v); return project([p[0] + r[0], p[1] + r[1], p[2] + r[2]]); };
    const fill = `rgb(${s.color})`, edge = `rgb(${s.color.map(c => Math.round(c * 0.55))})`, [a, b, c] = s.size;
    g.globalAlpha = s.alpha; g.lineCap = g.lineJoin = "round";
    if (s.kind === "sphere" || s.kind === "capsule") {
      const from = put([0, 0, s.kind === "sphere" ? 0 : -b]), to = put([0, 0, s.kind === "sphere" ? 0 : b]);
      for (const [color, width] of [[edge, 2 * a * px + 2.5], [fill, 2 * a * px]]) {
        g.strokeStyle = color; g.lineWidth = width; g.beginPath(); g.moveTo(from[0], from[1]);
        g.lineTo(to[0] + 0.01, to[1]); g.stroke();
      }
    } else {
      const corners = [];
      if (s.kind === "box") for (const x of [-a, a]) for (const y of [-b, b]) for (const z of [-c, c]) corners.push(put([x, y, z]));
      else for (let k = 0; k < 20; k++) for (const z of [-b, b]) corners.push(put([a * Math.cos(k * Math.PI / 10), a * Math.sin(k * Math.PI / 10), z]));
      const outline = hull(corners);
      g.beginPath(); outline.forEach((v, k) => k ? g.lineTo(v[0], v[1]) : g.moveTo(v[0], v[1])); g.closePath();
      g.fillStyle = fill; g.fill(); g.strokeStyle = edge; g.lineWidth = 1.5; g.stroke();
    }
    g.globalAlpha = 1;
  }

  gauges(g, w, h) {
    const d = this.data, f = this.frame;
    g.font = "15px system-ui, sans-serif"; g.textBaseline = "middle"; g.fillStyle = "#1c2430";
    g.fillText(`${(f * d.dt).toFixed(2)} s   return ${show(d.reward[f])}`, 14, 18);
    let y = h - 16;
    for (const [name, limit] of Object.entries(d.thresholds)) {
      const values = d.quantities[name]; if (!values) continue;
      const past = values.slice(Math.max(0, f - 60), f + 1), now = values[f], above = now > limit;
      const high = Math.max(2 * limit, ...past, 1e-6), low = Math.min(0, 2 * limit, ...past), top = y - 62;
      g.fillStyle = "#ffffffd0"; g.fillRect(8, top - 22, w - 16, 86);
      g.fillStyle = above ? "#b8400a" : "#0072b2";
      g.fillText(`${name} ${show(now)} (${above ? "above" : "within"} ${show(limit)})`, 16, top - 8);
      const Y = v => y - 6 - (v - low) / (high - low) * 52;
      g.strokeStyle = "#5d6a7a"; g.lineWidth = 1.5; g.setLineDash([6, 5]);
      g.beginPath(); g.moveTo(16, Y(limit)); g.lineTo(w - 16, Y(limit)); g.stroke(); g.setLineDash([]);
      g.strokeStyle = above ? "#d55e00" : "#0072b2"; g.lineWidth = 2.5; g.beginPath();
      past.forEach((v, k) => { const x = 16 + (w - 32) * (k + 61 - past.length) / 61; k ? g.lineTo(x, Y(v)) : g.moveTo(x, Y(v)); });
      g.stroke(); y -= 92;
    }
  }
}

function hull(points) {  // Andrew's monotone chain
  const p = points.slice().sort((a, b) => a[0] - b[0] || a[1] - b[1]), half = list => {
    const out = [];
    for (const v of list) {
      while (out.length > 1) {
        const [a, b] = out.slice(-2);
        if ((b[0] - a[0]) * (v[1] - a[1]) - (b[1] - a[1]) * (v[0] - a[0]) > 0) break;
        out.pop();
      }
      out.push(v);
    }
    return out.slice(0, -1);
  };
  return half(p).concat(half(p.reverse()));
}
