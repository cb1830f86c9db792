// Show the whole chain as a film: timing passes, counting guesses, growing the best tree so far. The content of each
// message is spread over the time until the next one.

const PICTURE_MS = 160 // each frame takes processor time from the measurement
const WAIT_MS = [1500, 2500, 6000] // minimum, initial and maximum time until the next message
const SLOWING = 2 // 86% is shown when the next message is due
const [FRAME_MS, LETTER_MS] = [150, 4] // maximum, after the end
const RECENT = 12 // frames replayed on returning to the page
const CHART = { height: 158, left: 30, right: 8, top: 16, bottom: 30 }
const ORDINALS = ["1st", "2nd", "3rd", "4th", "5th", "6th", "7th", "8th"]

function roll(view, film, next) {
  // Start or continue a film; `next` is played afterwards.
  const last = view.film?.id === film.id ? view.film : null
  if (film.over === "done" && (!last || last.cut)) return next.epoch === view.epoch ? undefined : begin(view, next)
  const now = performance.now()
  const at = last ? last.at : Math.max(0, film.frames.length - RECENT)
  const typed = last?.decoding?.number === film.decoding?.number ? last?.typed ?? 0 : 0
  const [least, first, most] = WAIT_MS
  view.film = { ...film, next, at, typed, beat: last?.beat, staged: last?.staged, shapes: film.shapes.map((shape, index) => last?.shapes[index] ?? readShape(shape)) }
  Object.assign(view.film, { from: { at, typed }, to: endOf(film), came: now })
  view.film.wait = last ? Math.min(most, Math.max(least, now - last.came)) : first
  if (!last) raise(view)
  if (film.over === "done") view.film.wait = Math.min(view.film.wait, FRAME_MS * (view.film.to.at - at) + LETTER_MS * (view.film.to.typed - typed))
  else if (film.over || isCalm()) view.film.wait = 0 // stopping the film ends the wait
  if (!view.film.beat) beat(view)
}

function raise(view) {
  play(view, false)
  const { el } = view
  el.tt.classList.add("filming")
  el.measured.hidden = true
  Object.assign(view, { supposed: null, epoch: null, drawn: null, reveal: null, least: 0, camera: HOME }) // the whole tree fits
  el.told.textContent = ""
  for (const way of view.ways) way.shown = -1
}

function cut(view) {
  // Switch from the film to the answer in two ways.
  const { next } = view.film
  view.el.tt.classList.remove("filming", "writing")
  view.film = { id: view.film.id, cut: true }
  if (next.epoch) begin(view, next)
}

function endOf({ frames, decoding }) {
  const last = frames.at(-1)
  return { at: frames.length + (last.last ? last.chance.length : 0), typed: decoding?.text.length ?? 0 } // nodes appear one by one
}

function beat(view) {
  const { film } = view
  const past = film.wait ? (performance.now() - film.came) / film.wait : 1
  const share = film.over ? Math.min(1, past) : 1 - Math.exp(-SLOWING * past) // keeps moving if the next message is late
  for (const part of ["at", "typed"]) film[part] = film.from[part] + share * (film.to[part] - film.from[part])
  drawFilm(view)
  rest(view)
  if (film.over && share === 1) return film.over === "done" ? cut(view) : undefined
  film.beat = setTimeout(() => beat(view), PICTURE_MS)
}

function rest({ film }) {
  clearTimeout(film?.beat)
  if (film) film.beat = null
}

function drawFilm(view) {
  const { film } = view
  const seen = film.frames.slice(0, Math.max(1, Math.floor(film.at)))
  const passes = seen.filter((frame) => frame.nodes)
  const guesses = seen.filter((frame) => frame.probs)
  const plans = seen.filter((frame) => frame.tokens)
  const name = `${seen.length} ${view.el.stage.clientWidth}`
  if (film.drawn !== name) {
    film.drawn = name
    drawCosts(view.el.costs, passes, film.sizes)
    drawGuesses(view.el.guesses, guesses.at(-1))
  }
  const plan = plans.at(-1)
  if (!plan) return stagePass(view, passes)
  const chance = seen.findLast((frame) => frame.chance).chance
  const shape = film.sizes.length + plans.length - 1
  view.el.stage.classList.remove("checked")
  if (plan.last) stagePlan(view, plan, shape, plan.chance, Math.floor(film.at) - film.frames.length + 1)
  else {
    say(view, `${total(chance).toFixed(1)} tokens per pass`, `expected from the first ${count(guesses.at(-1)?.prompts ?? 1, "prompt")}`,
      "2 · Counting how often the small model guesses right. This is the best tree so far.")
    stageTree(view, shape, chance, chance.length)
  }
}

const total = (values) => values.reduce((sum, value) => sum + value, 0)
const median = (values) => values.toSorted((a, b) => a - b)[values.length >> 1]
const taken = (passes, nodes) => passes.filter((pass) => pass.nodes === nodes).map((pass) => pass.sec)

function say(view, figure, beside, told) {
  view.ways[1].passes.replaceChildren(`${figure} `, make("small", beside))
  if (view.el.told.textContent !== told) view.el.told.textContent = told
}

function stagePass(view, passes) {
  const { nodes } = passes.at(-1)
  view.el.stage.classList.add("checked")
  const times = median(taken(passes, nodes)) / median(taken(passes, 1))
  say(view, `${count(nodes, "token")} in one pass`, nodes === 1 ? "" : `${times.toFixed(1)}× the time of one token`,
    "1 · Timing the large model: how much longer is a pass that checks many guesses at once?")
  stageTree(view, view.film.sizes.indexOf(nodes), null, nodes)
}

function stagePlan(view, plan, shape, chance, grown) {
  // Nodes appear in the order chosen, most likely first.
  const { decoding } = view.film
  const order = chance.map((_, node) => node).sort((a, b) => chance[b] - chance[a] || a - b)
  const shown = order.slice(0, grown)
  const isWhole = grown >= chance.length
  if (isWhole && decoding) {
    const speed = decoding.speedup === null ? "" : `measured so far, ${plan.speedup.toFixed(1)}× predicted`
    say(view, decoding.speedup === null ? "…" : `${decoding.speedup.toFixed(1)}× as fast`, speed, `4 · Decoding with and without the tree to compare: text ${decoding.number}.`)
    view.ways[1].prompt.textContent = decoding.prompt
    view.ways[1].body.textContent = decoding.text.slice(0, Math.ceil(view.film.typed))
    view.ways[1].typed.scrollTop = view.ways[1].typed.scrollHeight
  } else {
    const pace = isWhole ? `${plan.speedup.toFixed(1)}× as fast, predicted` : "expected"
    say(view, `${total(shown.map((node) => chance[node])).toFixed(1)} tokens per pass`, pace, "3 · The fastest tree on this machine, most likely guesses first.")
  }
  view.el.tt.classList.toggle("writing", isWhole && Boolean(decoding))
  stageTree(view, shape, chance, grown, new Set(shown))
}

function stageTree(view, shape, chance, grown, shown) {
  // Draw a tree without text, with the probabilities of reaching its nodes if known.
  const { film, el } = view
  const read = film.shapes[shape]
  view.shapes = film.shapes.map((each, index) => (index === shape ? read : null))
  const name = `${shape} ${el.stage.clientWidth} ${el.stage.clientHeight} ${Math.min(grown, read.parents.length)} ${chance?.[1]}`
  if (film.staged === name) return
  film.staged = name
  arrange(view)
  view.drawnShape = read // without gliding, which would take processor time from the measurement
  paint(view, {
    shape, tokens: read.parents.map((_, node) => (chance ? percent(chance[node]) : "")), outcomes: read.parents.map(() => (chance ? "A" : "N")), path: [0], bonus: null, trials: [],
    chances: chance ?? undefined, draft: [], target: [], wordless: !chance, opacity: chance?.map((_, node) => (!shown || shown.has(node) ? 1 : 0)),
  })
}

function chart(el, words) {
  el.replaceChildren()
  const width = el.parentElement.clientWidth
  set(el, { width, height: CHART.height, "aria-label": words })
  const write = (text, x, y, className = "") => {
    const label = svg("text", el, className)
    label.textContent = text
    set(label, { x, y })
  }
  return { width, write, base: CHART.height - CHART.bottom, room: CHART.height - CHART.bottom - CHART.top }
}

function drawCosts(el, passes, sizes) {
  // Chart the time of a pass relative to one token, by the number of tokens.
  const known = sizes.filter((nodes) => taken(passes, nodes).length)
  if (!known.length) return
  const one = median(taken(passes, 1))
  const ratios = known.map((nodes) => median(taken(passes, nodes)) / one)
  const { width, write, base, room } = chart(el, `Time of a pass relative to one token: ${known.map((nodes, i) => `${nodes} tokens ${ratios[i].toFixed(1)}×`).join(", ")}`)
  const most = Math.max(2, ...ratios) * 1.1
  const x = (nodes) => CHART.left + 6 + (Math.log2(nodes) / Math.log2(Math.max(64, sizes.at(-1)))) * (width - CHART.left - CHART.right - 12)
  const y = (ratio) => base - (Math.min(ratio, most) / most) * room
  for (let step = most > 8 ? 4 : 1, level = step; level < most; level += step) {
    set(svg("line", el, "grid"), { x1: CHART.left, x2: width - CHART.right, y1: y(level), y2: y(level) })
    write(`${level}×`, CHART.left - 4, y(level), "to-end")
  }
  for (const nodes of known) write(nodes, x(nodes), base + 12, "middle")
  write("tokens checked in one pass", (CHART.left + width - CHART.right) / 2, base + 25, "middle")
  for (const pass of passes) set(svg("circle", el, "sample"), { cx: x(pass.nodes), cy: y(pass.sec / one), r: 1.8 })
  set(svg("polyline", el, "curve"), { points: known.map((nodes, i) => `${x(nodes)},${y(ratios[i])}`).join(" ") })
  const last = passes.at(-1)
  set(svg("circle", el, "now"), { cx: x(last.nodes), cy: y(last.sec / one), r: 4 })
}

function drawGuesses(el, guess) {
  // Chart how often each guess of the draft is right, as bars.
  const probs = guess?.probs ?? []
  const { width, write, base, room } = chart(el, probs.length ? `How often each guess is right: ${probs.map(percent).join(", ")}` : "Nothing counted yet")
  const step = (width - CHART.right) / ORDINALS.length
  ORDINALS.forEach((name, rank) => {
    const [x, value] = [rank * step + 3, probs[rank] ?? 0]
    set(svg("rect", el, "pit"), { x, y: base - room, width: Math.max(0, step - 6), height: room, rx: 3 })
    set(svg("rect", el, "fill"), { x, y: base - room * value, width: Math.max(0, step - 6), height: room * value, rx: 3 })
    write(name, x + step / 2 - 3, base + 12, "middle")
    if (guess && value >= 0.005) write(`${(100 * value).toFixed(0)}%`, x + step / 2 - 3, base - room * value - 8, "middle")
  })
  write("guess of the small model", width / 2, base + 25, "middle")
}
