// The marginal gains and costs of a growing tree's nodes, and the best candidates that it left out.

function gainStory({ gains, costs }, node) {
  const [gain, cost] = [gains[node], costs[node]]
  if (cost === null) return `Expected to add f = ${fixed(gain)} tokens.`
  const less = gain < cost ? " This is less than it costs: a tree is chosen as a whole and, if its tokens are drawn, before they are known." : ""
  return `Expected to add f = ${fixed(gain)} tokens; its marginal cost is ${fixed(cost)} tokens.${less}`
}

function describeLeftOut(view, step) {
  const { marginal } = step
  const box = view.el["left-out"]
  if (step.lean && !box.hidden) {
    box.querySelector("summary").textContent = "Candidates left out of this step's tree appear after the run"
    view.el["left-out-list"].replaceChildren()
    return
  }
  box.hidden = !marginal || (marginal.next_cost === null && !marginal.left_out.length) // unknown for hybrid trees
  if (box.hidden) return
  const { left_out: left } = marginal
  box.querySelector("summary").textContent = left.length ? `Left out of this step's tree: the best ${count(left.length, "candidate")}` : "Nothing was left out of this step's tree"
  view.el["left-out-list"].replaceChildren(make("p", costStory(marginal)), ...(left.length ? [leftOutTable(view, step, left)] : []))
}

function costStory({ gains, next_cost: next, left_out: left }) {
  if (next === null) return `The tree's weakest node is expected to add ${fixed(Math.min(...gains))} tokens.`
  const besides = left.some(({ text }) => text === null) ? " A child of a node that the draft did not read would also cost a draft pass." : ""
  return `One more node would cost ${fixed(next)} tokens, the value of its time at the rate of this run.${besides}`
}

function leftOutTable(view, step, left) {
  const table = make("table")
  const head = make("tr")
  for (const name of ["after", "token", "expected tokens"]) head.append(make("th", name))
  table.append(head)
  for (const { parent, text, gain } of left) {
    const row = make("tr")
    const token = text === null ? make("td", "a first child, not drafted") : make("td", visible(text), "code")
    row.append(make("td", visible(step.tokens[parent]), "code"), token, make("td", fixed(gain)))
    row.onmouseenter = () => hover(view, parent)
    row.onmouseleave = () => hover(view, null)
    row.onclick = () => choose(view, parent)
    table.append(row)
  }
  return table
}
