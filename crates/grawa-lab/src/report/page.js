// Draws the curves, weights and times of a report. The data stand in the page as JSON; nothing is fetched, and nothing is kept.
'use strict';
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const byId = id => document.getElementById(id);
  const SVG = 'http://www.w3.org/2000/svg';
  const make = (name, attributes, parent) => {
    const node = document.createElementNS(SVG, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (parent) parent.append(node);
    return node;
  };
  const html = (name, properties, parent) => {
    const node = Object.assign(document.createElement(name), properties);
    if (parent) parent.append(node);
    return node;
  };
  const short = x => {
    const size = Math.abs(x);
    if (size === 0 || !isFinite(x)) return String(x);
    if (size < 1e-3 || size >= 1e6) return x.toExponential(2);
    return String(Number(x.toPrecision(4)));
  };

  // Round numbers along an axis, between two ends.
  const ticks = (low, high, log, most) => {
    const found = [];
    if (log) {
      const span = high - low;
      const digits = span < 0.7 ? [1, 2, 3, 4, 5, 6, 7, 8, 9] : span < 2 ? [1, 2, 5] : [1];
      const step = Math.max(1, Math.ceil(span / most));
      for (let decade = Math.floor(low); decade <= high; decade += step)
        for (const digit of digits) {
          const at = decade + Math.log10(digit);
          if (at >= low && at <= high) found.push([at, short(digit * 10 ** decade)]);
        }
      return found;
    }
    const least = (high - low) / most;
    const unit = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map(times => times * unit).find(step => step >= least) || 10 * unit;
    for (let at = Math.ceil(low / step) * step; at <= high + 1e-9 * step; at += step) found.push([at, short(Math.abs(at) < 1e-9 * step ? 0 : at)]);
    return found;
  };

  // A chart of lines { name, colour, x, y, dash, marker } in a box; hovering names the nearest point.
  const plot = (box, lines, axes, log) => {
    const wide = Math.max(280, box.clientWidth || 800), high = Math.max(240, Math.min(460, wide * 0.55));
    const [left, right, top, bottom] = [58, wide - 12, 26, high - 44];
    box.querySelectorAll('svg').forEach(old => old.remove());
    const svg = make('svg', { viewBox: `0 0 ${wide} ${high}`, role: 'img', 'aria-label': `${axes[1]} over ${axes[0]}` });
    box.prepend(svg);
    const scaled = y => (log ? Math.log10(y) : y);
    const usable = (x, y) => x !== null && y !== null && isFinite(x) && isFinite(scaled(y));
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const line of lines)
      line.x.forEach((x, at) => {
        if (!usable(x, line.y[at])) return;
        const y = scaled(line.y[at]);
        x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y);
      });
    if (!(x0 <= x1)) [x0, x1, y0, y1] = [0, 1, 0, 1];
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    const margin = y1 > y0 ? 0.04 * (y1 - y0) : 0.5;
    y0 -= margin; y1 += margin;
    const across = x => left + (x - x0) / (x1 - x0) * (right - left);
    const down = y => bottom - (scaled(y) - y0) / (y1 - y0) * (bottom - top);
    for (const [at, text] of ticks(x0, x1, false, wide < 500 ? 4 : 8)) {
      make('line', { class: 'grid', x1: across(at), x2: across(at), y1: top, y2: bottom }, svg);
      make('text', { x: across(at), y: bottom + 16, 'text-anchor': 'middle' }, svg).textContent = text;
    }
    for (const [at, text] of ticks(y0, y1, log, 6)) {
      const y = bottom - (at - y0) / (y1 - y0) * (bottom - top);
      make('line', { class: 'grid', x1: left, x2: right, y1: y, y2: y }, svg);
      make('text', { x: left - 6, y: y + 4, 'text-anchor': 'end' }, svg).textContent = text;
    }
    make('text', { x: (left + right) / 2, y: high - 8, 'text-anchor': 'middle' }, svg).textContent = axes[0];
    make('text', { x: 4, y: 14 }, svg).textContent = axes[1];
    const places = lines.map(line => line.x.map((x, at) => usable(x, line.y[at]) ? [across(x), down(line.y[at])] : null));
    // How many later lines run over a stretch of each: it is drawn wider, so that it is seen on both sides of them.
    const heights = places.map(all => new Map(all.filter(place => place).map(place => [Math.round(place[0]), place[1]])));
    const runsOver = (over, under) => over.some((place, at) => at > 0 && [over[at - 1], place].every(it => it && Math.abs(under.get(Math.round(it[0])) - it[1]) < 2));
    const wider = places.map((_, index) => Math.min(4, places.slice(index + 1).filter(over => runsOver(over, heights[index])).length));
    const points = [];
    for (const [index, line] of lines.entries()) {
      const from = points.length;
      let path = '', pen = false;
      const curve = make('path', { class: 'curve', stroke: line.colour }, svg);
      curve.style.setProperty('--wider', `${2.4 * wider[index]}px`);
      if (line.dash) curve.setAttribute('stroke-dasharray', line.dash);
      places[index].forEach((place, at) => {
        if (!place) { pen = false; return; }
        path += `${pen ? 'L' : 'M'}${place[0].toFixed(1)} ${place[1].toFixed(1)}`;
        pen = true;
        points.push([place[0], place[1], line, line.x[at], line.y[at], curve]);
      });
      curve.setAttribute('d', path);
      // Marks at some places, not the same for all lines: where lines coincide, each can be seen.
      const own = points.slice(from), every = Math.max(1, Math.ceil(own.length / 12)), size = 1 + 0.5 * wider[index];
      if (line.marker && lines.length > 1)
        for (let at = index % every; at < own.length; at += every)
          make('polygon', { class: 'mark', points: line.marker, fill: line.colour, transform: `translate(${own[at][0].toFixed(1)} ${own[at][1].toFixed(1)}) scale(${size})` }, svg);
    }
    const tip = box.querySelector('.tip') || html('div', { className: 'tip' }, box);
    let lit = null;
    const leave = () => { tip.style.display = 'none'; if (lit) lit.classList.remove('lit'); lit = null; };
    svg.addEventListener('pointerleave', leave);
    svg.addEventListener('pointermove', event => {
      const frame = svg.getBoundingClientRect(), zoom = wide / frame.width;
      const [x, y] = [(event.clientX - frame.left) * zoom, (event.clientY - frame.top) * zoom];
      let best = null, least = 60 * 60;
      for (const point of points) {
        const distance = (point[0] - x) ** 2 + (point[1] - y) ** 2;
        if (distance < least) { least = distance; best = point; }
      }
      leave();
      if (!best) return;
      lit = best[5];
      lit.classList.add('lit');
      tip.textContent = '';
      html('b', { textContent: best[2].name }, tip);
      html('div', { textContent: `${axes[0]}: ${short(best[3])}` }, tip);
      html('div', { textContent: `${axes[1]}: ${short(best[4])}` }, tip);
      tip.style.display = 'block';
      const place = best[0] / zoom;
      tip.style.left = `${Math.max(0, Math.min(place + 12, frame.width - tip.offsetWidth - 4))}px`;
      tip.style.top = `${Math.max(0, best[1] / zoom - tip.offsetHeight - 10)}px`;
    });
    return points.length;
  };

  // An exponential average that does not begin at nothing.
  const smooth = (numbers, share) => {
    if (share <= 0) return numbers;
    let sum = 0, weight = 0;
    return numbers.map(number => {
      if (number === null || !isFinite(number)) return number;
      sum = share * sum + (1 - share) * number;
      weight = share * weight + (1 - share);
      return sum / weight;
    });
  };

  // Curves.
  const off = new Set();
  const [metric, axis, log, smoothing, mean] = ['metric', 'axis', 'log', 'smoothing', 'mean'].map(byId);
  const AXES = { epochs: 'epochs', steps: 'steps a worker', seconds: 'seconds of training' };
  const DASHES = ['', '6 3', '2 3', '9 3 2 3'];
  const lines = () => {
    const share = Number(smoothing.value);
    const shown = data.runs.filter(run => !off.has(run.label) && run.metrics[metric.value]);
    const line = run => {
      const series = run.metrics[metric.value];
      return { name: run.name, colour: run.colour, marker: run.marker, x: series[axis.value], y: smooth(series.y, share) };
    };
    if (!mean.checked) {
      const seen = {};
      return shown.map(run => {
        seen[run.label] = (seen[run.label] || 0) + 1;
        return { ...line(run), dash: DASHES[(seen[run.label] - 1) % DASHES.length] };
      });
    }
    // The mean of a method's runs, point by point, as far as all of them go; without those that diverged.
    const groups = new Map();
    for (const run of shown.filter(run => !run.diverged)) groups.set(run.label, [...(groups.get(run.label) || []), run]);
    return [...groups.values()].map(runs => {
      const all = runs.map(line), length = Math.min(...all.map(one => one.x.length));
      const middle = key => Array.from({ length }, (_, at) => {
        const numbers = all.map(one => one[key][at]);
        return numbers.includes(null) ? null : numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
      });
      return { name: `${runs[0].label}, mean of ${runs.length}`, colour: runs[0].colour, marker: runs[0].marker, x: middle('x'), y: middle('y') };
    });
  };
  const curves = () => plot(byId('curves'), lines(), [AXES[axis.value], metric.value], log.checked);
  const chips = byId('methods');
  const methods = new Map(data.runs.map(run => [run.label, run]));
  for (const [method, run] of methods) {
    const chip = html('button', { type: 'button', className: 'chip' }, chips);
    chip.dataset.method = method;
    const sign = make('svg', { viewBox: '-13 -6 26 12', 'aria-hidden': 'true' }, chip);
    make('line', { x1: -13, x2: 13, y1: 0, y2: 0, stroke: run.colour, 'stroke-width': 1.6 }, sign);
    make('polygon', { points: run.marker, fill: run.colour }, sign);
    chip.append(run.label);
    chip.setAttribute('aria-pressed', 'true');
    chip.addEventListener('click', () => {
      if (!off.delete(method)) off.add(method);
      chip.setAttribute('aria-pressed', String(!off.has(method)));
      curves();
    });
  }
  for (const control of [metric, axis, log, smoothing, mean]) control.addEventListener('input', curves);

  // Weights.
  const weighted = data.runs.filter(run => run.weights);
  const [which, worker] = [byId('which'), byId('worker')];
  const bytes = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  // A byte is log₂(β·M) from −2 to 2; 255 is none.
  const times = byte => 2 ** (byte / 254 * 4 - 2);
  const shade = byte => {
    if (byte === 255) return [128, 128, 128];
    const at = byte / 127 - 1, end = at < 0 ? [33, 102, 172] : [178, 24, 43], share = Math.sqrt(Math.abs(at));
    return end.map(part => Math.round(247 + (part - 247) * share));
  };
  const heat = (box, run) => {
    const { layers, rounds, workers, cells } = run.weights, all = bytes(cells), column = Math.max(0, workers.indexOf(Number(worker.value)));
    box.querySelectorAll('svg').forEach(old => old.remove());
    const canvas = box.querySelector('canvas') || html('canvas', {}, box);
    canvas.width = rounds.length;
    canvas.height = layers.length;
    canvas.style.height = `${Math.max(160, Math.min(640, layers.length * 9))}px`;
    canvas.setAttribute('role', 'img');
    canvas.setAttribute('aria-label', `Weights of worker ${workers[column]} by layer and round`);
    const byte = (round, layer) => all[(round * layers.length + layer) * workers.length + column];
    const context = canvas.getContext('2d'), image = context.createImageData(rounds.length, layers.length);
    for (let layer = 0; layer < layers.length; layer++)
      for (let round = 0; round < rounds.length; round++)
        image.data.set([...shade(byte(round, layer)), 255], 4 * (layer * rounds.length + round));
    context.putImageData(image, 0, 0);
    byId('first').textContent = `left: round ${rounds[0]}, top: ${layers[0]}`;
    byId('last').textContent = `right: round ${rounds[rounds.length - 1]}, bottom: ${layers[layers.length - 1]}`;
    const tip = box.querySelector('.tip') || html('div', { className: 'tip' }, box);
    canvas.onpointerleave = () => { tip.style.display = 'none'; };
    canvas.onpointermove = event => {
      const frame = canvas.getBoundingClientRect();
      const round = Math.min(rounds.length - 1, Math.floor((event.clientX - frame.left) / frame.width * rounds.length));
      const layer = Math.min(layers.length - 1, Math.floor((event.clientY - frame.top) / frame.height * layers.length));
      if (round < 0 || layer < 0) return;
      const found = byte(round, layer);
      tip.textContent = `${layers[layer]}, round ${rounds[round]}: ` + (found === 255 ? 'none' : `β ≈ ${short(times(found) / workers.length)} (1/M = ${short(1 / workers.length)})`);
      tip.style.display = 'block';
      tip.style.left = `${Math.max(0, Math.min(event.clientX - frame.left + 12, frame.width - tip.offsetWidth))}px`;
      tip.style.top = `${Math.max(0, event.clientY - frame.top - 36)}px`;
    };
  };
  const SERIES = data.series;
  const weights = () => {
    const run = weighted[Number(which.value)], box = byId('weights');
    if (!run) return;
    const layered = Boolean(run.weights.layers);
    byId('of-worker').hidden = byId('scale').hidden = byId('under').hidden = !layered;
    if (layered) {
      const before = worker.value;
      worker.textContent = '';
      for (const one of run.weights.workers) html('option', { value: one, textContent: `worker ${one}` }, worker);
      if (run.weights.workers.includes(Number(before)) && before !== '') worker.value = before;
      heat(box, run);
      return;
    }
    box.querySelectorAll('canvas').forEach(old => old.remove());
    const { rounds, workers, rows } = run.weights;
    plot(box, workers.map((one, at) => ({ name: `worker ${one}`, colour: SERIES[at % SERIES.length], dash: DASHES[Math.floor(at / SERIES.length) % 4], x: rounds, y: rows[at] })), ['round', 'β'], false);
  };
  if (weighted.length) {
    weighted.forEach((run, at) => html('option', { value: at, textContent: run.name }, which));
    which.addEventListener('input', weights);
    worker.addEventListener('input', weights);
    const first = weighted.findIndex(run => run.weights.layers);
    which.value = String(Math.max(0, first));
    const bar = byId('scale').querySelector('i');
    const stops = [0, 32, 64, 96, 127, 159, 191, 223, 254].map(byte => `rgb(${shade(byte)})`);
    bar.style.background = `linear-gradient(90deg, ${stops.join(', ')})`;
  } else byId('weights-section').hidden = true;

  // Times: a bar a run, or a method where there are many.
  const split = byId('split');
  const timed = data.runs.filter(run => run.times.some(seconds => seconds > 0));
  const rows = timed.length <= 16 ? timed.map(run => [run.name, run.times]) : [...methods.values()].map(first => {
    const own = timed.filter(run => run.label === first.label);
    return [`${first.label}, mean of ${own.length}`, data.parts.map((_, at) => own.reduce((sum, run) => sum + run.times[at], 0) / Math.max(1, own.length))];
  });
  const longest = Math.max(...rows.map(([, parts]) => parts.reduce((sum, x) => sum + x, 0)), 1e-12);
  for (const [name, parts] of rows) {
    html('span', { className: 'name', textContent: name, title: name }, split);
    const bar = html('span', { className: 'parts' }, split);
    parts.forEach((seconds, at) => {
      const part = html('span', { title: `${data.parts[at]}: ${short(seconds)} s` }, bar);
      part.style.width = `${100 * seconds / longest}%`;
      part.style.background = SERIES[at % SERIES.length];
    });
  }
  data.parts.forEach((part, at) => {
    const key = html('span', { className: 'key' }, byId('parts'));
    html('i', {}, key).style.background = SERIES[at % SERIES.length];
    key.append(part);
  });
  if (!timed.length) byId('split-section').hidden = true;

  const all = () => { curves(); weights(); };
  let last = 0;
  addEventListener('resize', () => { cancelAnimationFrame(last); last = requestAnimationFrame(all); });
  all();
})();
