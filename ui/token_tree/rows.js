// What both models thought at the place of a decision, and how often a child is accepted there.

function rowTables(view, step, rows, trial) {
  // What both models thought at the place of a decision; for a rejected child also what was left of the target's row.
  const models = [["target", rows.target], ...(rows.draft.texts.length ? [["draft", rows.draft]] : [])]
  const found = [make("p", `Most likely after ${quote(step.tokens[rows.node])}:`), sideBySide(...models)]
  const rejectedBefore = trial < 0 ? 0 : trial
  const after = trial < 0 ? null : rows.residuals[rejectedBefore]
  if (after) {
    const before = rejectedBefore ? rows.residuals[rejectedBefore - 1] : rows.target
    found.push(make("p", "The rejection changed the residual R:"), sideBySide(["R before", before], ["R after", after]))
  } else if (trial < 0 && rows.residuals.length) {
    found.push(make("p", "What the rejections left of the target's row:"), sideBySide(["P", rows.target], ["R", rows.residuals.at(-1)]))
  }
  return found
}

function acceptanceTable(view, { accepted }, children) {
  // Averages over all draws of as many children: those of this step were only one of them.
  const table = make("table", undefined, "shares")
  const [head, row] = [make("tr"), make("tr")]
  const best = accepted.best === undefined ? [] : [["best", "best possible", false]]  // not known where top-p or top-k cut
  for (const [name, label, own] of [...view.about.verifiers, ...best]) {
    head.append(make("th", own ? `${label}, as here` : label))
    row.append(make("td", percent(accepted[name])))
  }
  table.append(head, row)
  const those = children === 1 ? "the one child" : `one of ${children} children`
  return [
    make("p", `How often ${those} is accepted at this place, averaged over all draws:`),
    table,
    make("p", best.length ? `Best possible: with children ${view.about.drawn}, as here, no verifier can accept more often and keep the target's probabilities. The others draw theirs in their own way.` : "Each verifier draws its children in its own way."),
  ]
}

function sideBySide(...columns) {
  const table = make("table", undefined, "likely")
  const head = make("tr")
  for (const [name] of columns) {
    head.append(make("th", name), make("th", ""))
  }
  table.append(head)
  for (let line = 0; line < Math.max(...columns.map(([, likely]) => likely.texts.length)); line++) {
    const row = make("tr")
    for (const [, likely] of columns) {
      const there = line < likely.texts.length
      row.append(make("td", there ? visible(likely.texts[line]) : ""), make("td", there ? percent(likely.probs[line]) : ""))
    }
    table.append(row)
  }
  return table
}
