// Panel A: three unit clients in the plane, FedPCD's projection solved exactly.
(() => {
  "use strict";

  const SETS = [[], [0], [1], [2], [0, 1], [0, 2], [1, 2]]; // in the plane, two constraints determine the point
  const ROOM = 1e-12; // rounding error of products of unit vectors
  const FLAT = 1e-9; // sine below which two clients count as parallel
  const DIAL = 146; // radius of the dial in the drawing
  const UNIT = 112; // radius of the unit circle while x* is short
  const REACH = 137; // largest drawn length of x*
  const FARTHEST = 0.36; // smallest zoom; a longer x* is cut at the dial

  const dot = ([a, b], [c, d]) => a * c + b * d;
  const cross = ([a, b], [c, d]) => a * d - b * c;
  const length = (v) => Math.hypot(v[0], v[1]);
  const scaled = (v, by) => [v[0] * by, v[1] * by];
  const plus = (v, w) => [v[0] + w[0], v[1] + w[1]];
  const radians = (degrees) => (degrees * Math.PI) / 180;
  const degrees = (v) => (Math.atan2(v[1], v[0]) * 180) / Math.PI;
  const ray = (angle) => [Math.cos(radians(angle)), Math.sin(radians(angle))];
  const round = (angle) => (((Math.round(angle * 10) % 3600) + 3600) % 3600) / 10; // to tenths

  /** Multipliers for which the constraints of `active` hold with equality; null if parallel. */
  function tight(start, units, tau, active) {
    const mu = units.map(() => 0);
    const lack = active.map((k) => tau - dot(units[k], start));
    if (active.length === 1) {
      mu[active[0]] = lack[0];
    } else if (active.length === 2) {
      const [u, v] = active.map((k) => units[k]);
      const sine = cross(u, v);
      if (Math.abs(sine) < FLAT) return null;
      mu[active[0]] = (lack[0] - dot(u, v) * lack[1]) / (sine * sine);
      mu[active[1]] = (lack[1] - dot(u, v) * lack[0]) / (sine * sine);
    }
    return mu;
  }

  /** The x nearest to `start` with u_k . x >= tau for all k, by trying every active set. */
  function project(start, units, tau) {
    for (const active of SETS) {
      const mu = tight(start, units, tau, active);
      if (!mu || mu.some((m) => m < 0)) continue;
      const x = units.reduce((sum, u, k) => plus(sum, scaled(u, mu[k])), start);
      const room = ROOM * (1 + length(x));
      if (units.every((u) => dot(u, x) >= tau - room)) return { x, mu };
    }
    return null;
  }

  /** One FedPCD step for three unit updates, as in common/methods/fedpcd.py. */
  function bend({ angles, tau, normalise, primary }) {
    const units = angles.map(ray);
    const sum = scaled(units.reduce(plus), 1 / 3);
    const mean = length(sum) > ROOM ? sum : [0, 0];
    const size = length(mean);
    const primal = size > 0 ? scaled(mean, 1 / size) : mean;
    const start = primary ? (normalise ? primal : mean) : [0, 0];
    const found = project(start, units, tau);
    const mu = found ? found.mu : [0, 0, 0];
    const point = found && found.x;
    const bent = mu.some((m) => m > 0) || !primary;
    const still = point && length(point) < FLAT;
    const step = !point || !bent ? mean : still ? [0, 0] : scaled(point, size / length(point));
    const moves = length(step) > 0;
    return {
      units, mean, start, primal, primary, point, mu, step, bent, still,
      turn: moves ? Math.abs(degrees([dot(mean, step), cross(mean, step)])) : null,
      cosines: units.map((u) => (moves ? dot(u, step) / length(step) : null)),
    };
  }

  const NS = "http://www.w3.org/2000/svg";
  const make = (name, attributes = {}, ...inside) => {
    const node = document.createElementNS(NS, name);
    set(node, attributes);
    node.append(...inside);
    return node;
  };
  const set = (node, attributes) => {
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  };
  const shown = (value, digits) => {
    const plain = Math.abs(value) >= 1e4 ? value.toExponential(2) : value.toFixed(digits);
    return (Number(plain) === 0 ? plain.replace("-", "") : plain).replace("-", "\u2212");
  };
  /** Show a number rounded, with the full value in data-value. */
  const put = (node, value, digits = 4, unit = "") => {
    node.dataset.value = value === null ? "" : String(value);
    node.textContent = value === null ? "\u2013" : shown(value, digits) + unit;
  };
  const names = (clients) =>
    clients.length === 1 ? `Client ${clients[0]}` : `Clients ${clients.join(" and ")}`;

  function start(root) {
    const part = (name) => root.querySelector(`[data-part="${name}"]`);
    const all = (selector) => [...root.querySelectorAll(selector)];
    const svg = root.querySelector(".fk-picture > svg");
    const slider = root.querySelector("input[type=range]");
    const options = all("[data-option]");
    const examples = all("[data-angles]");
    const anglesOf = (button) => button.dataset.angles.split(" ").map(Number);
    const state = { angles: anglesOf(examples[0]), tau: Number(slider.value) };

    for (let angle = 0; angle < 360; angle += 10) {
      const tick = { x1: DIAL, x2: DIAL - (angle % 30 ? 3 : 6), transform: `rotate(${-angle})` };
      part("ticks").append(make("line", tick));
    }
    const clients = state.angles.map((_, k) => {
      const hue = { class: `fk-client fk-hue-${k + 1}` };
      const half = make("g", { ...hue, class: `${hue.class} fk-half` },
        make("rect", { x: -400, y: -400, height: 800 }),
        make("line", { class: "fk-hatch", y1: -400, y2: 400 }),
        make("line", { class: "fk-border", y1: -400, y2: 400 }));
      const arrow = make("g", { ...hue, class: `${hue.class} fk-arrow` },
        make("line"), make("path", { d: "M0 0L-9-4L-9 4Z" }),
        make("line", { class: "fk-lead", x2: DIAL }));
      const label = make("text", { class: "fk-number" }, String(k + 1));
      const handle = make("g", {
        ...hue, class: `${hue.class} fk-handle`, tabindex: 0, role: "slider", "data-client": k + 1,
        "aria-label": `Direction of client ${k + 1}`, "aria-valuemin": 0, "aria-valuemax": 360,
      }, make("circle", { class: "fk-reach", r: 24 }), make("circle", { class: "fk-ring", r: 19 }),
        make("circle", { class: "fk-knob", r: 14 }), label);
      const row = document.createElement("tr");
      row.className = hue.class;
      row.dataset.client = k + 1;
      row.innerHTML = `<th scope="row"><span class="fk-badge">${k + 1}</span></th>` +
        ["mean", "point", "active", "mu", "cosine"].map((c) => `<td data-cell="${c}"></td>`).join("");
      part("halves").append(half);
      part("clients").append(arrow);
      part("handles").append(handle);
      part("rows").append(row);
      return { half, arrow, handle, row };
    });

    const at = (v, radius) => [v[0] * radius, -v[1] * radius]; // the drawing's y points down
    function draw_arrow(group, tip, drawn) {
      const [line, head] = group.children;
      set(group, { transform: `rotate(${-degrees(tip)})`, display: drawn > 1 ? "inline" : "none" });
      set(line, { x2: Math.max(drawn - 7, 0) });
      if (head) set(head, { transform: `translate(${drawn}) scale(${Math.min(1, drawn / 24)})` });
    }
    function draw_label(name, text, [x, y], side, [left, up] = [0, 0]) {
      const node = root.querySelector(`[data-label="${name}"]`);
      node.textContent = text;
      set(node, { x: x + left, y: y + up + 4.5, "text-anchor": side });
    }
    /** A label at a drawn tip, moved `aside` to the left (positive) or right of the direction. */
    function beside(name, text, v, drawn, aside) {
      const direction = length(v) > 0 ? scaled(v, 1 / length(v)) : [0, 0];
      const [x, y] = at(direction, drawn);
      const [left, up] = at([-direction[1], direction[0]], aside);
      const side = left > 4 ? "start" : left < -4 ? "end" : "middle";
      draw_label(name, text, [x, y], side, [left, up]);
    }

    function draw(result) {
      const { units, mean, start: from, primal, primary, point, mu, step } = result;
      const far = point ? length(point) : 0;
      const zoom = Math.max(FARTHEST, Math.min(1, REACH / UNIT / (far || 1)));
      const unit = UNIT * zoom;
      const reach = Math.min(far * unit, REACH);
      set(part("unit"), { r: unit });
      clients.forEach(({ half, arrow, handle }, k) => {
        const turned = { transform: `rotate(${-state.angles[k]})` };
        const [x, y] = at(units[k], DIAL + 17);
        const edge = state.tau * unit;
        set(half, turned);
        set(half.children[0], { width: 400 + edge });
        set(half.children[1], { x1: edge - 3.5, x2: edge - 3.5 });
        set(half.children[2], { x1: edge, x2: edge });
        half.classList.toggle("fk-active", mu[k] > 0);
        draw_arrow(arrow, units[k], unit);
        set(arrow.children[2], { x1: unit });
        set(handle, {
          transform: `translate(${x} ${y})`,
          "aria-valuenow": state.angles[k], "aria-valuetext": `${state.angles[k]} degrees`,
        });
        handle.dataset.value = String(state.angles[k]);
      });
      const ghost = primary ? from : primal; // FedAvg's direction, also when it is not used
      draw_arrow(root.querySelector('[data-arrow="mean"]'), ghost, length(ghost) * unit);
      root.querySelector('[data-arrow="mean"]').classList.toggle("fk-ghost", !primary);
      draw_arrow(root.querySelector('[data-arrow="point"]'), point || [0, 0], point ? reach : 0);
      draw_arrow(root.querySelector('[data-arrow="step"]'), step, length(step) * unit);
      root.querySelector('[data-arrow="point"]').classList.toggle("fk-far", reach < far * unit - 1);

      const [x1, y1] = at(from, unit);
      const [x2, y2] = at(point || from, far ? reach / far : unit);
      set(part("pull"), { x1, y1, x2, y2 });
      const bow = unit * 0.62;
      const [ax, ay] = at(scaled(mean, 1 / (length(mean) || 1)), bow);
      const [bx, by] = at(scaled(step, 1 / (length(step) || 1)), bow);
      const left = cross(mean, step) > 0; // the step lies left of the mean
      const arc = `M${ax} ${ay}A${bow} ${bow} 0 0 ${left ? 0 : 1} ${bx} ${by}`;
      set(part("turn"), { d: result.turn > 0.5 ? arc : "" });

      const aside = left ? 13 : -13;
      const same = point && result.turn !== null && result.turn < 0.5;
      const long = reach < far * unit - 1 ? `, ${shown(far, 1)} long` : "";
      const origin = length(ghost) === 0 || same ? "" : "u\u2080";
      const target = !point || far < FLAT ? "" : same ? "x* = u\u2080" : `x*${long}`;
      const back = point ? Math.min(length(step) * unit - 12, reach - 32) : length(step) * unit - 12;
      beside("mean", origin, ghost, length(ghost) * unit - 8, -aside);
      beside("point", target, point || from, reach - 10, aside);
      beside("step", length(step) > 0 ? "d" : "", step, back, same ? -aside : aside);
    }

    function tell(result) {
      const { units, primal, point, mu, step } = result;
      const active = mu.flatMap((m, k) => (m > 0 ? [k + 1] : []));
      const [kind, text] =
        length(result.mean) === 0 ? ["stuck", "The updates cancel each other: there is no step."]
        : !point ? ["stuck", "Infeasible: FedPCD takes FedAvg\u2019s step."]
        : result.still && active.length ? ["stuck", "The only feasible point is 0: there is no step."]
        : result.still ? ["stuck", "No constraint is active at 0: there is no step."]
        : !result.bent ? ["idle", "No constraint is active: FedAvg\u2019s step is kept."]
        : ["bent", `${names(active)} ${active.length > 1 ? "bend" : "bends"} the step.`];
      const verdict = part("verdict");
      verdict.dataset.kind = kind;
      verdict.dataset.value = point ? "feasible" : "infeasible";
      if (verdict.textContent !== text) verdict.textContent = text; // screen readers announce only a new text

      put(part("tau"), state.tau, 3);
      const fact = (name) => root.querySelector(`[data-fact="${name}"]`);
      put(fact("angle"), point && !result.still ? (degrees(point) + 360) % 360 : null, 2, "\u00b0");
      put(fact("length"), point && length(point));
      put(fact("turn"), result.turn, 2, "\u00b0");
      put(fact("step"), length(step));
      clients.forEach(({ row }, k) => {
        const cell = (name) => row.querySelector(`[data-cell="${name}"]`);
        put(cell("mean"), length(primal) > 0 ? dot(units[k], primal) : null);
        put(cell("point"), point && dot(units[k], point));
        put(cell("mu"), point && mu[k]);
        put(cell("cosine"), result.cosines[k]);
        cell("active").dataset.value = String(mu[k] > 0);
        cell("active").textContent = mu[k] > 0 ? "yes" : "no";
      });
    }

    function render() {
      const [normalise, primary] = options.map((option) => option.checked);
      const result = bend({ ...state, normalise, primary });
      draw(result);
      tell(result);
      slider.value = String(state.tau);
      slider.setAttribute("aria-valuetext", shown(state.tau, 3));
      const press = (button, on) => button.setAttribute("aria-pressed", String(on));
      const same = (angles) => angles.every((angle, k) => angle === state.angles[k]);
      examples.forEach((button) => press(button, same(anglesOf(button))));
      all("[data-tau]").forEach((button) => press(button, Number(button.dataset.tau) === state.tau));
    }
    function change(what) {
      Object.assign(state, what);
      render();
    }
    const turn = (k, angle) =>
      change({ angles: state.angles.map((old, i) => (i === k ? round(angle) : old)) });

    const KEYS = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }; // as for any slider
    clients.forEach(({ handle }, k) => {
      let slip = null; // angle between pointer and handle during a drag
      const pointed = (event) => {
        const box = svg.getBoundingClientRect();
        const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
        return degrees([event.clientX - x, y - event.clientY]);
      };
      handle.addEventListener("pointerdown", (event) => {
        if (event.button !== 0) return;
        event.preventDefault();
        handle.setPointerCapture(event.pointerId);
        handle.focus({ preventScroll: true, focusVisible: false });
        slip = state.angles[k] - pointed(event);
      });
      // prevents scrolling by touch: touch-action alone is not enough inside an SVG
      handle.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
      for (const moved of ["pointermove", "pointerup"]) {
        handle.addEventListener(moved, (event) => {
          if (slip !== null) turn(k, pointed(event) + slip);
        });
      }
      for (const end of ["pointerup", "pointercancel", "lostpointercapture"]) {
        handle.addEventListener(end, () => (slip = null));
      }
      handle.addEventListener("keydown", (event) => {
        if (!(event.key in KEYS) || event.altKey || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        turn(k, state.angles[k] + KEYS[event.key] * (event.shiftKey ? 5 : 1));
      });
    });
    slider.addEventListener("input", () => change({ tau: Number(slider.value) }));
    options.forEach((option) => option.addEventListener("change", render));
    all("[data-tau]").forEach((button) =>
      button.addEventListener("click", () => change({ tau: Number(button.dataset.tau) })));
    examples.forEach((button) =>
      button.addEventListener("click", () => change({ angles: anglesOf(button) })));
    render();
  }

  const begin = () => {
    const root = document.getElementById("fk-bend");
    if (root) start(root);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();

// Panel B: the clients in the history, round by round.
(() => {
  "use strict";

  const BEAT = 320; // milliseconds per round while playing
  const LAST = 600; // last round while playing
  const SPAN = 60; // rounds on the plot
  const SIDE = 360; // side of the grid
  const PLOT = { left: 30, right: 318, top: 12, bottom: 142 };
  const NS = "http://www.w3.org/2000/svg";

  /** Mulberry32: numbers in [0, 1) from a 32-bit seed, the same in every browser. */
  function chance(seed) {
    let a = seed >>> 0;
    return () => {
      a = (a + 0x6d2b79f5) | 0;
      let t = Math.imul(a ^ (a >>> 15), a | 1);
      t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
      return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
  }

  const cohort_size = (share, clients) => Math.max(1, Math.floor(share * clients + 1e-9));

  /** Expected number of clients in the history after `round`, with `cohort` sampled per round. */
  const expected = ({ clients, history }, cohort, round) =>
    clients * (1 - (1 - cohort / clients) ** Math.min(round, history + 1));

  /** The last round of each client, and the number in the history after each round. */
  function simulate(settings, rounds) {
    const { clients, history, seed } = settings;
    const draw = chance(seed);
    const cohort = cohort_size(settings.share, clients);
    const seen = new Array(clients).fill(null);
    const order = seen.map((_, k) => k);
    const held = [0];
    for (let round = 1; round <= rounds; round += 1) {
      for (let k = 0; k < cohort; k += 1) { // partial shuffle: sampling without replacement
        const other = k + Math.floor(draw() * (clients - k));
        [order[k], order[other]] = [order[other], order[k]];
        seen[order[k]] = round;
      }
      held.push(seen.filter((last) => last !== null && round - last <= history).length);
    }
    return { seen, held, cohort };
  }

  const set = (node, attributes) => {
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  };
  const make = (name, attributes) => set(document.createElementNS(NS, name), attributes);
  const put = (node, value, text) => {
    node.dataset.value = String(value);
    node.textContent = text;
  };

  function start(root) {
    const part = (name) => root.querySelector(`[data-part="${name}"]`);
    const fact = (name) => root.querySelector(`[data-fact="${name}"]`);
    const label = (name) => root.querySelector(`[data-label="${name}"]`);
    const inputs = [...root.querySelectorAll("[data-input]")];
    const play = root.querySelector('[data-act="play"]');
    const settings = {};
    let round = Number(play.dataset.start);
    let timer = null;

    /** Read the inputs. An invalid value leaves the setting unchanged. */
    function read() {
      for (const input of inputs) {
        const value = input.valueAsNumber;
        if (input.checkValidity() && Number.isFinite(value)) settings[input.dataset.input] = value;
      }
    }

    function draw_grid({ seen, held }) {
      const { clients, history } = settings;
      const grid = part("grid");
      const columns = Math.ceil(Math.sqrt(clients));
      const cell = (SIDE - 8) / Math.max(columns, 6);
      if (grid.childElementCount !== clients) {
        const rows = Math.ceil(clients / columns);
        set(grid, { viewBox: `0 0 ${SIDE} ${SIDE}` });
        grid.replaceChildren(...seen.map((_, k) => {
          const dot = make("g", { class: "fk-dot", "data-client": k + 1 });
          dot.append(make("circle", {
            cx: SIDE / 2 + ((k % columns) - (columns - 1) / 2) * cell,
            cy: SIDE / 2 + (Math.floor(k / columns) - (rows - 1) / 2) * cell,
          }));
          return dot;
        }));
      }
      seen.forEach((last, k) => {
        const dot = grid.children[k];
        const age = last === null ? null : round - last;
        const fresh = age === null ? 0 : Math.max(0, 1 - age / (history + 1));
        const state = age === null ? "never" : age === 0 ? "now" : age <= history ? "held" : "lost";
        const size = { now: 0.4, held: 0.2 + 0.17 * fresh, lost: 0.24, never: 0.09 }[state];
        dot.dataset.state = state;
        dot.dataset.age = age === null ? "" : String(age);
        set(dot.firstChild, {
          r: size * cell, "fill-opacity": state === "held" ? 0.25 + 0.65 * fresh : 1,
        });
      });
      const words = `${held[round]} of ${clients} clients are in the history in round ${round}`;
      set(grid, { "aria-label": words });
    }

    function draw_plot({ held, cohort }) {
      const full = expected(settings, cohort, Infinity);
      const first = Math.max(0, round - SPAN);
      const rounds = Array.from({ length: SPAN + 1 }, (_, k) => first + k);
      const highest = Math.max(full, ...held.slice(first)) * 1.12;
      const steps = [1, 2, 5, 10, 20, 50, 100];
      const gap = steps.find((step) => highest / step <= 4) || 100;
      const x = (t) => PLOT.left + ((t - first) / SPAN) * (PLOT.right - PLOT.left);
      const y = (n) => PLOT.bottom - (n / highest) * (PLOT.bottom - PLOT.top);
      const path = (values) =>
        values.map(([t, n], k) => `${k ? "L" : "M"}${x(t).toFixed(1)} ${y(n).toFixed(1)}`).join("");
      const text = (words, place) => {
        const node = make("text", { class: "fk-scale", ...place });
        node.textContent = words;
        return node;
      };
      const axes = [];
      for (let n = 0; n <= highest; n += gap) {
        axes.push(make("line", { x1: PLOT.left, x2: PLOT.right, y1: y(n), y2: y(n) }));
        axes.push(text(n, { x: PLOT.left - 6, y: y(n) + 4, "text-anchor": "end" }));
      }
      for (const t of rounds.filter((each) => each % 20 === 0)) {
        axes.push(text(t, { x: x(t), y: PLOT.bottom + 16, "text-anchor": "middle" }));
      }
      const middle = (PLOT.left + PLOT.right) / 2;
      axes.push(text("round", { x: middle, y: PLOT.bottom + 32, "text-anchor": "middle" }));
      part("axes").replaceChildren(...axes);
      const lines = rounds.map((t) => [t, expected(settings, cohort, t)]);
      const points = held.slice(first).map((n, k) => [first + k, n]);
      set(part("expected"), { d: path(lines) });
      set(part("held"), { d: path(points) });
      set(part("now"), { cx: x(round), cy: y(held[round]) });
      set(label("expected"), { x: PLOT.right + 5, y: y(full) + 4 });
      label("expected").textContent = full.toFixed(1);
      const room = x(round) > PLOT.right - 40 ? [-4, "end"] : [6, "start"];
      set(label("held"), {
        x: x(round) + room[0], y: Math.min(y(held[round]) + 19, PLOT.bottom - 3),
        "text-anchor": room[1],
      });
      label("held").textContent = `${held[round]} held`;
      set(part("plot"), {
        "aria-label": `${held[round]} in the history after round ${round}, ${full.toFixed(1)} expected`,
      });
    }

    function render(aloud = true) {
      read();
      const { clients, share, history } = settings;
      const result = simulate(settings, round);
      const { held, cohort } = result;
      const full = expected(settings, cohort, Infinity);
      draw_grid(result);
      draw_plot(result);
      const shown = (name) => root.querySelector(`[data-shown="${name}"]`);
      put(shown("clients"), clients, clients);
      put(shown("share"), share, share.toFixed(2));
      put(shown("history"), history, history);
      put(fact("round"), round, round);
      put(fact("cohort"), cohort, cohort);
      put(fact("held"), held[round], held[round]);
      put(fact("expected"), full, full.toFixed(2));
      root.dataset.held = held.join(" ");
      if (aloud) part("said").textContent = `Round ${round}: ${held[round]} held.`;
    }

    function pause() {
      clearInterval(timer);
      timer = null;
      play.textContent = "play";
    }
    function advance(aloud) {
      round += 1;
      render(aloud);
      if (round >= LAST) pause();
    }
    const acts = {
      play() {
        if (timer !== null) {
          pause();
          render();
          return;
        }
        if (round >= LAST) round = 0;
        timer = setInterval(() => document.hidden || advance(false), BEAT);
        play.textContent = "pause";
      },
      step() {
        pause();
        advance(true);
      },
      reset() {
        pause();
        round = 0;
        render();
      },
    };
    for (const button of root.querySelectorAll("[data-act]")) {
      button.addEventListener("click", acts[button.dataset.act]);
    }
    for (const input of inputs) input.addEventListener("input", () => render());
    pause();
    render();
  }

  const begin = () => {
    const root = document.getElementById("fk-memory");
    if (root) start(root);
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
