// The planned tree. It follows the size slider while it is dragged, because Python sends the best tree of each size.

const SLIDER = ".st-key-n_slider" // Streamlit's slider on the same page
const DRAGGED = `${SLIDER} [data-dragging=true]` // an answer to an earlier position must not replace the picture
const views = new WeakMap()

export default function planTree({ data, parentElement }) {
  let view = views.get(parentElement)
  if (!view) {
    const find = (name) => parentElement.querySelector("." + name)
    view = { el: Object.fromEntries([...STAGE_PARTS, "figures", "caption"].map((name) => [name, find(name)])) }
    prepareStage(view)
    view.extraColumns = 1.5 // for the words of the last level
    view.el.tt.onkeydown = (event) => !event.altKey && !event.ctrlKey && !event.metaKey && pressKey(view, event) && takeKey(event)
    views.set(parentElement, view)
  }
  view.data = data
  view.bySize = new Map(data.sizes.map((tree) => [tree.parents.length, tree]))
  if (!view.plan || !document.querySelector(DRAGGED)) showPlan(view, data.tree, true)
  view.watcher ??= watchSlider(view)
  view.observer ??= new ResizeObserver(() => (view.el.stage.clientWidth !== view.width || view.el.stage.clientHeight !== view.height) && showPlan(view, view.plan, view.isFinal))
  view.observer.observe(view.el.stage)
  return () => {
    view.observer.disconnect()
    view.watcher?.disconnect()
    Object.assign(view, { observer: null, watcher: null })
  }
}

function watchSlider(view) {
  const slider = document.querySelector(SLIDER)
  if (!slider) return null
  const watcher = new MutationObserver(() => {
    const size = Number(slider.querySelector("input[type=range]")?.getAttribute("aria-valuetext")?.replaceAll(",", ""))
    const tree = size === view.data.tree.parents.length ? view.data.tree : view.bySize.get(size)
    if (tree && tree !== view.plan) showPlan(view, tree, tree === view.data.tree)
  })
  watcher.observe(slider, { attributes: true, subtree: true })
  return watcher
}

const wordOf = (view, shape, node) => view.data.words[keyOf(shape, node).slice(1)]

function showPlan(view, plan, isFinal) {
  // `isFinal`: whether this is the tree in use, rather than the one under the dragged slider.
  const { data } = view
  plan.read ??= readShape(plan)
  const shape = plan.read
  Object.assign(view, { plan, isFinal, shapes: [shape], found: null })
  keepChosen(view, shape)
  arrange(view)
  const hasWords = Object.keys(data.words).length > 0
  const words = shape.parents.map((_, node) => wordOf(view, shape, node) ?? (hasWords ? undefined : node ? String(shape.ranks[node]) : "root"))
  const next = isFinal ? data.next : null
  paint(view, { planned: true, shape: 0, tokens: words, chances: plan.scores, draft: [], target: [], path: [next?.parent ?? 0], bonus: next ? `+${fixed(next.gain)}` : null, trials: [] })
  const sum = plan.scores.reduce((total, score) => total + score, 0)
  writeFigures(view, isFinal ? data.figures : [[`nodes; f(v) adds up to ${sum.toFixed(2)}`, String(plan.scores.length), false]])
  describePlan(view)
}

function describePlan(view) {
  view.el.caption.textContent = view.chosen === null ? view.data.caption : nodeStory(view, view.chosen)
}

function nodeStory(view, node) {
  if (node === "bonus") return `The next node would add ${fixed(view.data.next.gain)} tokens per step.`
  const { parents, ranks, depths, children } = view.plan.read
  if (node === 0) return "The root is the last token of the text. It is not a guess."
  const { scores } = view.plan
  const below = (at) => children[at].reduce((sum, child) => sum + 1 + below(child), 0)
  const word = wordOf(view, view.plan.read, node)
  return `Node ${node}${word ? ` ${quote(word)}` : ""}: guess ${ranks[node]} at depth ${depths[node]}, right with p = ${fixed(scores[node] / scores[parents[node]])} if its parent is; ` +
    `accepted with f(v) = ${fixed(scores[node])}; ${count(below(node), "node")} below.`
}

function hover(view, node) {
  view.linked = node
  repaint(view)
  showTip(view, node, node === null ? "" : nodeStory(view, node))
}

function choose(view, node) {
  if (node === null) return
  view.chosen = view.chosen === node ? null : node
  repaint(view)
  describePlan(view)
}
