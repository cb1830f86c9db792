// The shapes of trees that a run has, each sent once, and where the nodes of one stand on a stage that all share.

const SVG_LIMIT = 2000 // nodes; above it one canvas draws faster than that many elements
const STAGE_HEIGHT = 540
const EDGE = 15 // a bonus token fits above the first row and below the last
const WIDEST_ROW = 40
const SPREAD_ROW = 30
const SCROLLBAR = 18
const PILL_ROW = 13 // px that a row of texts needs
const FLAT = 2 // rows that leave the stage's height to the text and the explanation
const NARROW = 420 // px; on a narrower stage texts keep their width, and it scrolls

function readShape({ parents, across }) {
  const children = parents.map(() => [])
  const [ranks, depths] = [[0], [0]]
  parents.forEach((parent, node) => {
    if (parent < 0) return
    ranks[node] = children[parent].push(node)
    depths[node] = depths[parent] + 1
  })
  const leaves = across.reduce((most, place) => Math.max(most, place), 0) + 1
  const depth = depths[depths.length - 1] // nodes are numbered breadth-first
  return { parents, across, children, ranks, depths, leaves, depth, onCanvas: parents.length > SVG_LIMIT, spots: null }
}

function rowHeight(view, leaves) {
  const fitted = Math.min(WIDEST_ROW, (view.stageHeight - 2 * EDGE - 2) / (leaves + 1))
  return view.spread ? Math.max(fitted, SPREAD_ROW) : fitted
}

function arrange(view) {
  // One stage for every shape seen so far: steps of different shapes follow each other without the page moving.
  const { el } = view
  const known = view.shapes.filter(Boolean)
  const columns = Math.max(...known.map((shape) => shape.depth)) + 2 // one more for a bonus token below the deepest level
  const leaves = Math.max(...known.map((shape) => shape.leaves))
  el.tt.classList.toggle("flat", leaves <= FLAT)
  view.width = el.stage.clientWidth
  view.stageHeight = el.stage.clientHeight || STAGE_HEIGHT
  const isPhone = view.width < NARROW && rowHeight(view, leaves) >= PILL_ROW
  const least = view.spread ? 118 : isPhone ? 84 : view.least || 10
  view.column = Math.min(170, Math.max(least, (view.width - 20) / columns))
  view.fullWidth = Math.max(view.width, Math.ceil(columns * view.column + 20))
  const room = view.stageHeight - (view.fullWidth > view.width ? SCROLLBAR : 0)
  view.height = Math.max(Math.ceil((leaves + 1) * rowHeight(view, leaves) + 2 * EDGE), room)
  for (const shape of known) shape.spots = null
  set(el.graph, { width: view.fullWidth, height: view.height })
  el.field.style.width = view.fullWidth + "px"
  el.field.style.height = view.height + "px"
}

function spotsOf(view, shape) {
  // Where each node stands, and how much room it has: pills with text, or dots.
  if (shape.spots) return shape.spots
  const { column, height } = view
  const row = rowHeight(view, shape.leaves)
  const top = (height - (shape.leaves + 1) * row) / 2
  const pills = row >= PILL_ROW && column >= 36 && !shape.onCanvas
  shape.spots = {
    row, column, top, pills,
    tall: row >= 28 && column >= 118 && pills, // room for the numbers too
    x: shape.depths.map((depth) => 10 + depth * column),
    y: shape.across.map((across) => top + (across + 1) * row),
    free: new Map(), // where a bonus token fits, by last accepted node
  }
  return shape.spots
}

function curve(spots, from, x, y) {
  const start = spots.x[from] + 5
  const middle = spots.pills ? x - Math.min(22, spots.column / 3) : (start + x) / 2
  return `M${start},${spots.y[from]} C${middle},${spots.y[from]} ${middle},${y} ${x + 1},${y}`
}

function bonusPlace(view, shape, parent) {
  // The free spot in the next column that is nearest to the parent's row.
  const spots = spotsOf(view, shape)
  if (!spots.free.has(parent)) {
    const depth = shape.depths[parent] + 1
    const taken = spots.y.filter((_, node) => shape.depths[node] === depth)
    const isFree = (y) => y >= EDGE - 1 && y <= view.height - EDGE + 1 && taken.every((other) => Math.abs(other - y) >= spots.row * 0.95)
    let best = spots.y[parent]
    for (let k = 0; k <= 4 * (shape.leaves + 2); k++) {
      const y = spots.y[parent] + (k % 2 ? 1 : -1) * Math.ceil(k / 2) * spots.row * 0.5
      if (isFree(y)) {
        best = y
        break
      }
    }
    spots.free.set(parent, { x: 10 + depth * spots.column, y: best })
  }
  return spots.free.get(parent)
}

function placeOf(view, step, node) {
  const shape = shapeOf(view, step)
  if (node === "bonus") return bonusPlace(view, shape, step.path[step.path.length - 1])
  const spots = spotsOf(view, shape)
  return { x: spots.x[node], y: spots.y[node] }
}

function shapeOf(view, step) {
  return view.shapes[step.shape]
}

function nearest(view, event) {
  const step = view.steps[view.shown]
  if (!step) return null
  const spots = spotsOf(view, shapeOf(view, step))
  let best = null
  let least = 144 // 12 px, squared
  const measure = (id, x, y) => {
    const distance = (x + 5 - event.offsetX) ** 2 + (y - event.offsetY) ** 2
    if (distance < least) [best, least] = [id, distance]
  }
  spots.x.forEach((x, node) => measure(node, x, spots.y[node]))
  if (step.bonus !== null) {
    const place = placeOf(view, step, "bonus")
    measure("bonus", place.x, place.y)
  }
  return best
}
