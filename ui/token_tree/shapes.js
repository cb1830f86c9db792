// The shapes of a run's trees, each sent once, their layout on the stage, and the camera that looks at it.

const EDGE = 16 // px around the tree; a bonus token fits above the first row and below the last
const [TALLEST_ROW, WIDEST_COLUMN] = [84, 190] // px, or this share of a large stage
const LARGE_SHARE = 1 / 7
const NARROW = 420 // px; on a narrower stage, columns are wide enough for words, and the camera follows
const PHONE_COLUMN = 84
const [CLOSEST_ROW, CLOSEST_COLUMN] = [44, 150] // px at the highest zoom
const HOME = { zoom: 1, across: 1, down: 1, x: 0, y: 0 } // the camera sees the whole tree
const FINGER = 14 // px around a node that count as the node

function arrange(view) {
  // All shapes so far have the same columns, so that steps of different shapes do not move the text.
  const { stage } = view.el
  const known = view.shapes.filter(Boolean)
  const columns = Math.max(...known.map((shape) => shape.depth)) + (view.extraColumns ?? 2) // one for a bonus token below the deepest level
  Object.assign(view, { width: stage.clientWidth, height: stage.clientHeight })
  const least = view.least ?? (view.width < NARROW ? PHONE_COLUMN : 10)
  view.column = Math.min(Math.max(WIDEST_COLUMN, view.width * LARGE_SHARE), Math.max(least, (view.width - 20) / columns))
  view.fullWidth = Math.max(view.width, columns * view.column + 20)
  for (const shape of known) shape.spots = null
  moveCamera(view, view.camera)
}

function spotsOf(view, shape) {
  // The position of each node at zoom 1.
  if (shape.spots) return shape.spots
  const height = view.height - (view.below ?? 0)
  const row = Math.min(Math.max(TALLEST_ROW, height * LARGE_SHARE), (height - 2 * EDGE) / (shape.leaves + 1))
  const top = (height - (shape.leaves + 1) * row) / 2
  const left = Math.max(10, (view.width - (shape.depth + 2) * view.column) / 2)
  shape.spots = {
    row,
    x: shape.depths.map((depth) => left + depth * view.column),
    y: shape.across.map((across) => top + (across + 1) * row),
    free: new Map(), // where a bonus token fits, by last accepted node
  }
  return shape.spots
}

function moveCamera(view, { zoom, x, y }) {
  // Move the camera, but never beyond the tree. Columns and rows stop growing once words fit.
  const least = Math.min(...view.shapes.filter(Boolean).map((shape) => spotsOf(view, shape).row))
  const [widest, tallest] = [Math.max(1, CLOSEST_COLUMN / view.column), Math.max(1, CLOSEST_ROW / least)]
  const near = Math.min(Math.max(widest, tallest), Math.max(1, zoom))
  const [across, down] = [Math.min(near, widest), Math.min(near, tallest)]
  const within = (place, full, size) => Math.min(0, Math.max(size - full, place))
  view.camera = { zoom: near, across, down, x: within(x, view.fullWidth * across, view.width), y: within(y, view.height * down, view.height) }
  view.el.stage.classList.toggle("roams", near > 1 || view.fullWidth > view.width + 1)
  view.el.stage.classList.toggle("zoomed", near > 1) // until then, a swipe up or down scrolls the page
}

function zoomAt(view, factor, x, y) {
  // Zoom so that the point under the pointer stays where it is.
  const before = view.camera
  moveCamera(view, { ...before, zoom: before.zoom * factor })
  const { zoom, across, down } = view.camera
  moveCamera(view, { zoom, x: x - ((x - before.x) * across) / before.across, y: y - ((y - before.y) * down) / before.down })
}

function lookAt(view, step, node) {
  // Center a node, if not all of the tree is visible.
  const place = worldPlace(view, step, node)
  const { zoom, across, down } = view.camera
  moveCamera(view, { zoom, x: view.width / 2 - place.x * across, y: view.height / 2 - place.y * down })
}

function bonusPlace(view, shape, parent) {
  // The free spot in the next column nearest to the parent's row.
  const spots = spotsOf(view, shape)
  if (!spots.free.has(parent)) {
    const depth = shape.depths[parent] + 1
    const taken = spots.y.filter((_, node) => shape.depths[node] === depth)
    const isFree = (y) => y >= EDGE - 1 && y <= view.height - (view.below ?? 0) - EDGE + 1 && taken.every((other) => Math.abs(other - y) >= spots.row * 0.95)
    let best = spots.y[parent]
    for (let k = 0; k <= 4 * (shape.leaves + 2); k++) {
      const y = spots.y[parent] + (k % 2 ? 1 : -1) * Math.ceil(k / 2) * spots.row * 0.5
      if (isFree(y)) {
        best = y
        break
      }
    }
    spots.free.set(parent, { x: spots.x[parent] + view.column, y: best })
  }
  return spots.free.get(parent)
}

function worldPlace(view, step, node) {
  const shape = shapeOf(view, step)
  if (node === "bonus") return bonusPlace(view, shape, step.path.at(-1))
  const spots = spotsOf(view, shape)
  return { x: spots.x[node], y: spots.y[node] }
}

function placeOf(view, step, node) {
  // Where a node is on the screen.
  const { x, y } = worldPlace(view, step, node)
  const { camera } = view
  return { x: x * camera.across + camera.x, y: y * camera.down + camera.y }
}

function nearest(view, x, y) {
  // The drawn node at or near a point of the stage.
  const inside = view.placed?.findLast((box) => x >= box.x && x <= box.x + box.width && Math.abs(y - box.y) <= box.height / 2)
  if (inside) return inside.node
  let [best, least] = [null, FINGER ** 2]
  for (const box of view.placed ?? []) {
    const distance = (box.x + box.width / 2 - x) ** 2 + (box.y - y) ** 2
    if (box.dot && distance < least) [best, least] = [box.node, distance]
  }
  return best
}
