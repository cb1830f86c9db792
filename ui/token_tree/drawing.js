// Draw a tree with the methods of a canvas: on the stage, in a PNG file, or as SVG.

const GLIDE_LIMIT = 300 // nodes; moving more would stutter
const GLIDE_MS = 220
const [SMALLEST_TEXT, LARGEST_TEXT] = [11, 17] // px
const GAP = 14 // px between a word and the next column, where the edges are seen
const [SHORT_ASIDE, LONGEST_ASIDE] = [56, 140] // px of a word above or below the path
const GAUGE = 11 // px for the bars of both probabilities
const STORIES = 4 // rows of words above and below a path whose columns are too narrow for them
const ORDER = { unreached: 0, planned: 0, rejected: 1, accepted: 2, bonus: 3 } // later ones are drawn over earlier ones

function showsBonus(view, step) {
  return step.bonus !== null && (view.reveal === null || view.reveal > step.trials.length)
}

function paint(view, step) {
  // Draw a step on the stage. If its tree has another shape than the one before, nodes glide to their new places.
  const shape = shapeOf(view, step)
  if (view.drawnShape !== shape) startGliding(view, shape)
  view.drawnShape = shape
  view.step = step
  draw(view, sized(view.el.field, view.width, view.height))
  paintMap(view)
}

function draw(view, pen) {
  const { step } = view
  const shape = shapeOf(view, step)
  const tone = colours(view)
  const chances = step.chances ?? chancesOf(step, shape)
  const nodes = nodesOf(view, step, shape, chances)
  for (const each of nodes) if (each.parent) drawEdge(pen, tone, each.parent, each)
  view.placed = placeWords(view, pen, tone, step, nodes)
  for (const box of view.placed) drawNode(view, pen, tone, step, box)
  describeField(view, nodes)
}

function describeField({ el: { field }, placed }, nodes) {
  // What the picture shows, for screen readers and for scripts.
  const counts = Object.groupBy(nodes, ({ state }) => state)
  const states = Object.keys(WORDS).filter((state) => counts[state]).map((state) => `${counts[state].length} ${WORDS[state]}`)
  field.setAttribute("aria-label", [`Token tree of ${count(nodes.length - (counts.bonus?.length ?? 0), "node")}`, ...states].join(", "))
  field.placed = placed
}

function nodesOf(view, step, shape, chances) {
  // What is drawn of each node, the least important first.
  const { across, down, x: dx, y: dy } = view.camera
  const spots = spotsOf(view, shape)
  const path = new Set(step.path)
  const share = glideShare(view)
  const nodes = []
  const add = (node, parent, place, chance) => {
    const from = share < 1 ? view.glide.from.get(keyOf(shape, node)) ?? view.glide.from.get(keyOf(shape, parent)) : null
    const [x, y] = from ? [from.x + (place.x - from.x) * share, from.y + (place.y - from.y) * share] : [place.x, place.y]
    const state = stateOf(view, step, node)
    nodes[node === "bonus" ? nodes.length : node] = {
      node, state, chance, x: x * across + dx, y: y * down + dy, parent: nodes[parent], opacity: step.opacity?.[node] ?? 1,
      named: node === "bonus" || (path.has(node) && !step.planned), square: foundAt(step, node) !== null, both: Boolean(foundAt(step, node)?.drafted),
    }
  }
  shape.parents.forEach((parent, node) => {
    if (shape.depths[node] <= (step.levels ?? Infinity) && step.opacity?.[node] !== 0) add(node, parent, { x: spots.x[node], y: spots.y[node] }, chances[node])
  })
  if (showsBonus(view, step)) add("bonus", step.path.at(-1), bonusPlace(view, shape, step.path.at(-1)), 0.1)
  const weight = (each) => 4 * ORDER[each.state] + 2 * each.named + each.chance + 40 * (each.node === view.chosen)
  return nodes.filter(Boolean).sort((one, other) => weight(one) - weight(other))
}

function placeWords(view, pen, tone, step, nodes) {
  // Give each node a box with its word if there is room, the most important first, and a dot otherwise.
  const row = spotsOf(view, shapeOf(view, step)).row * view.camera.down
  const column = view.column * view.camera.across
  const size = Math.max(SMALLEST_TEXT, Math.min(LARGEST_TEXT, row * 0.35, column * 0.12))
  const [pad, gap] = column < 90 ? [4, 8] : [6, GAP]
  const tall = row >= 34 && column >= 118 && step.draft.length > 0
  const height = Math.min(Math.max(row - 3, size + 4), tall ? 2 * size + 7 : size + 9)
  const radius = Math.max(1.5, Math.min(5, row * 0.42, column * 0.3))
  const bands = new Map()
  const near = (y) => [-1, 0, 1].flatMap((by) => bands.get(Math.round(y / height) + by) ?? [])
  const occupy = (box) => {
    const band = Math.round(box.y / height)
    if (!bands.has(band)) bands.set(band, [])
    bands.get(band).push(box)
    return box
  }
  const dotOf = (each) => {
    const wide = radius * (each.named ? 1.25 : each.chance < 0.02 && each.state !== "accepted" ? 0.8 : 1)
    return { ...each, dot: true, x: each.x + 5 - wide, width: 2 * wide, height: 2 * wide }
  }
  const visibleNodes = nodes.filter((each) => each.x > -column && each.x < view.width + 20 && each.y > -row && each.y < view.height + row)
  const dots = new Map(visibleNodes.map((each) => [each.node, occupy(dotOf(each))]))
  if (step.wordless) return [...dots.values()]
  useFont(pen, fontOf(tone, size))
  for (const each of visibleNodes.toReversed()) {
    const own = dots.get(each.node)
    const text = each.node === "bonus" ? step.bonus : step.tokens[each.node]
    if (text === undefined) continue
    let gauge = !each.node || step.draft[each.node] === undefined || column < 64 ? 0 : GAUGE
    const odds = tall && gauge ? oddsOf(step, each.node) : ""
    const bare = Math.max(widthOf(pen, visible(text)), odds ? 6 * size : 0) + 2 * pad
    const isLeaf = typeof each.node !== "number" || !shapeOf(view, step).children[each.node].length
    let room = Math.min(view.fullWidth * view.camera.across + view.camera.x - each.x - 4, isLeaf ? 2.5 * column : Math.max(column - gap, 24))
    let blocked = false
    for (const other of near(each.y)) {
      if (other === own || Math.abs(other.y - each.y) >= (other.height + height) / 2 - 0.5) continue
      if (other.x + other.width <= each.x || other.x >= each.x + room) continue
      if (other.x <= each.x + 2) blocked = true
      else room = Math.min(room, other.x - each.x - 4)
    }
    if (bare <= room && bare + gauge > room) gauge = 0 // a whole word is worth more than the bars
    if (each.named && (blocked || bare + gauge > room)) {
      const aside = (width) => width <= Math.min(bare, LONGEST_ASIDE) && placeAside(view, each, width, height, { near, occupy })
      const place = aside(bare) || aside(SHORT_ASIDE)
      if (place) {
        Object.assign(own, place, { dot: false, height, text: shorten(pen, text, place.width - 2 * pad), odds: "", gauge: 0, size, pad, stem: { x: each.x + 5, y: each.y, radius } })
        occupy(own)
        continue
      }
    }
    const word = shorten(pen, text, room - 2 * pad - gauge)
    if (blocked || word === null) continue
    const width = Math.min(room, Math.max(widthOf(pen, word), odds ? 6 * size : 0, 8) + 2 * pad + gauge)
    Object.assign(own, { dot: false, x: each.x, width, height, text: word, odds, gauge, size, pad })
  }
  return visibleNodes.map((each) => dots.get(each.node))
}

function keepChosen(view, shape) {
  // In another tree, the chosen node is the one with the same path.
  if (typeof view.chosen !== "number" || !view.drawnShape || view.drawnShape === shape) return
  const key = keyOf(view.drawnShape, view.chosen)
  const same = shape.parents.findIndex((_, node) => keyOf(shape, node) === key)
  view.chosen = same < 0 ? null : same
}

function placeAside(view, each, width, height, { near, occupy }) {
  // A free place above or below a node of the path, joined to it by a stem that crosses no other word.
  const story = height + 3
  const x = Math.max(2, Math.min(each.x + 5 - width / 2, view.fullWidth * view.camera.across + view.camera.x - width - 2))
  const isFree = (left, right, y) => near(y).every((other) => other.x >= right || other.x + other.width <= left || Math.abs(other.y - y) >= (other.height + height) / 2)
  const ways = new Map([[-1, []], [1, []]]) // the stem's parts
  for (let level = 1; level <= STORIES; level++) {
    for (const [way, stem] of ways) {
      const y = each.y + way * level * story
      const isInside = y > height && y < view.height - (view.below ?? 0) - height
      if (isInside && isFree(x, x + width, y)) {
        for (const part of stem) occupy(part)
        return { x, y, width }
      }
      if (isInside && isFree(each.x + 4, each.x + 6, y)) stem.push({ x: each.x + 4, width: 2, y, height: story })
      else ways.delete(way)
    }
  }
  return null
}

function keyOf(shape, node) {
  // A node's path of ranks, which identifies it in trees of other shapes.
  if (typeof node !== "number") return String(node)
  if (!shape.keys) {
    shape.keys = []
    shape.parents.forEach((parent, at) => shape.keys.push(parent < 0 ? "" : `${shape.keys[parent]}.${shape.ranks[at]}`))
  }
  return shape.keys[node]
}

function startGliding(view, shape) {
  const before = view.drawnShape
  clearTimeout(view.glide?.timer)
  view.glide = null
  if (!before?.spots || view.running || isCalm() || Math.max(before.parents.length, shape.parents.length) > GLIDE_LIMIT) return
  const from = new Map(before.parents.map((_, node) => [keyOf(before, node), { x: before.spots.x[node], y: before.spots.y[node] }]))
  const frame = () => {
    draw(view, sized(view.el.field, view.width, view.height))
    if (glideShare(view) < 1) view.glide.timer = setTimeout(frame, 16)
    else view.glide = null
  }
  view.glide = { from, began: performance.now(), timer: setTimeout(frame, 16) }
}

function glideShare(view) {
  const share = view.glide ? Math.min(1, (performance.now() - view.glide.began) / GLIDE_MS) : 1
  return 1 - (1 - share) ** 2
}
