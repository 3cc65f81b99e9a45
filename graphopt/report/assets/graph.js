/* The two graphs of a report, folded into blocks and laid out by dagre. Reads the data beside it, fetches nothing, and
   writes names only as text. `graph_data` of graph_data.py says what the data are. */
"use strict";
(() => {
  const { drawGraph } = drawing;
  const started = performance.now();
  const source = document.getElementById("graph-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const SIDES = ["before", "after"];
  const GONE = ["removed", "new"]; // what becomes of a node that is on one side only
  const FIRST_VIEW = 33; // boxes up to which blocks are opened with the block around them
  const SMALL_BLOCK = 3; // nodes of a block that is not worth a box of its own where there is room
  const STUB_READERS = 3; // boxes that read a value from which on it is drawn as a stub
  const CONTEXT = 6; // nodes of a block that is shown for the sake of some of them
  const MAX_DESCRIBED = 6; // nodes of a side that are described below the graphs
  const MAX_RESULTS = 100;
  const LEAST_FIRST_ZOOM = 0.5; // a wider graph is scrolled
  const MIN_ZOOM = 0.1, MAX_ZOOM = 3, ZOOM_STEP = 1.25;

  // -- the model ------------------------------------------------------------------------------------------------------

  const blocks = data.blocks.map(([label, parent], id) => (
    { id, label, parent, children: [], nodes: [[], []], size: [0, 0], changes: [new Set(), new Set()] }));
  for (const block of blocks.slice(1)) blocks[block.parent].children.push(block.id);

  const partners = [new Map(), new Map()];
  for (const [before, after, length] of data.kept) {
    for (let i = 0; i < length; i++) {
      partners[0].set(before + i, after + i);
      partners[1].set(after + i, before + i);
    }
  }

  const rewritesOf = [new Map(), new Map()]; // by node: the rewrites that removed, made or changed it
  data.rewrites.forEach((rewrite, index) => rewrite.places.forEach((place) => place.forEach((nodes, side) => {
    for (const node of nodes) {
      const known = rewritesOf[side].get(node);
      if (!known) rewritesOf[side].set(node, [index]);
      else if (!known.includes(index)) known.push(index);
    }
  })));

  const toRef = (ref) => (Array.isArray(ref) ? ref : [ref, 0]);
  const sides = data.sides.map((side, index) => ({
    inputs: side.inputs,
    outputs: side.outputs.map(([name, ref]) => ({ name, ref: toRef(ref) })),
    nodes: side.nodes.map(([op, name, block, types, inputs, status], id) => {
      const partner = partners[index].get(id);
      return {
        id, block, op: data.ops[op], types: data.types[types], inputs: inputs.map(toRef), status: data.statuses[status],
        name: name === 0 ? data.sides[0].nodes[partner][1] : name,
      };
    }),
  }));
  sides.forEach(({ nodes }, side) => nodes.forEach((node) => {
    blocks[node.block].nodes[side].push(node.id);
    for (let id = node.block; ; id = blocks[id].parent) {
      blocks[id].size[side] += 1;
      if (node.status !== "kept") blocks[id].changes[side].add(node.status);
      if (id === 0) break;
    }
  }));

  const ancestors = (id) => (id === 0 ? [0] : [...ancestors(blocks[id].parent), id]);
  const isWithin = (id, outer) => ancestors(id).includes(outer);
  const titleOf = (id) => ancestors(id).slice(1).map((each) => blocks[each].label).join("/") || blocks[0].label;
  const isChanged = ({ changes }) => changes.some((statuses) => statuses.size > 0);
  const sizeText = (block) => {
    const [before, after] = block.size;
    if (before !== after) return `${before} → ${after} nodes`;
    return `${before} node${before === 1 ? "" : "s"}`;
  };

  // -- a view: what is shown of a block -------------------------------------------------------------------------------

  /* Return the blocks that are drawn open: the block itself, the one that is most of it, and small ones. */
  function openBlocks(root) {
    const boxesOf = (id) => blocks[id].children.length + Math.max(...blocks[id].nodes.map((nodes) => nodes.length));
    const total = (id) => blocks[id].size[0] + blocks[id].size[1];
    const open = new Set([root]);
    let count = boxesOf(root), closed = [...blocks[root].children];
    for (;;) {
      const fits = (id) => count - 1 + boxesOf(id) <= FIRST_VIEW;
      const next = closed.find((id) => boxesOf(id) <= 1)
        ?? closed.find((id) => 2 * total(id) > total(root) && fits(id))
        ?? closed.find((id) => total(id) <= 2 * SMALL_BLOCK && fits(id));
      if (next === undefined) return open;
      count += boxesOf(next) - 1;
      open.add(next);
      closed = [...closed.filter((id) => id !== next), ...blocks[next].children];
    }
  }

  /* Return the boxes of one side of a view and the edges between them.
     A box is a node, a block, an input or output of the model, or a neighbour outside the block. */
  function viewOf(root, open, side) {
    const { nodes, inputs, outputs } = sides[side];
    const inside = new Set([root]);
    for (const { id, parent } of blocks) if (id !== 0 && inside.has(parent)) inside.add(id);
    const around = new Set(ancestors(root));
    const boxOf = nodes.map((node) => (inside.has(node.block)
      ? insideBox(node, root, open, side) : outsideBox(node, around)));
    const sourceOf = ([source]) => (source >= 0 ? boxOf[source]
      : { key: `input ${source}`, kind: "input", label: inputs[-1 - source] });

    const values = new Map(); // by the reference of a value: the box that it comes from, and those that read it
    const note = (ref, reader) => {
      const key = ref.join("."), from = sourceOf(ref);
      if (from.key === reader.key || (isOuter(from) && isOuter(reader))) return;
      if (!values.has(key)) values.set(key, { from, readers: new Map() });
      values.get(key).readers.set(reader.key, reader);
    };
    for (const { id, inputs: refs } of nodes) {
      const box = boxOf[id];
      const reader = box.kind === "neighbour" ? { ...box, key: `to ${box.key}`, isReader: true } : box;
      for (const ref of refs) note(ref, reader);
    }
    for (const { name, ref } of outputs) {
      if (root === 0 || (ref[0] >= 0 && inside.has(nodes[ref[0]].block))) {
        note(ref, { key: `output ${name}`, kind: "output", label: name });
      }
    }

    const boxes = new Map(), edges = new Map();
    const add = (box) => {
      if (!boxes.has(box.key)) boxes.set(box.key, { ...box, stubs: [] });
      return boxes.get(box.key);
    };
    for (const box of boxOf) if (!isOuter(box)) add(box);
    for (const { from, readers } of values.values()) {
      const drawn = drawnReaders([...readers.values()]);
      add(from);
      for (const reader of readers.values()) {
        if (drawn.has(reader)) edges.set(`${from.key}>${add(reader).key}`, [from.key, reader.key]);
        else if (!isOuter(reader)) addStub(boxes.get(reader.key), from.label);
      }
    }
    return { boxes: [...boxes.values()], edges: [...edges.values()] };
  }

  const addStub = (box, label) => box.stubs.includes(label) || box.stubs.push(label);
  const isOuter = ({ kind }) => kind === "neighbour" || kind === "input";

  /* Return the readers to which a value has an edge; the others have a stub. Outputs of the model have one each. */
  function drawnReaders(readers) {
    const outer = readers.filter((reader) => reader.kind === "neighbour");
    const inner = readers.filter((reader) => reader.kind === "node" || reader.kind === "block");
    const few = (some, all) => (all.length < STUB_READERS ? some : some.slice(0, 1));
    return new Set([...readers.filter(({ kind }) => kind === "output"), ...few(inner, readers), ...few(outer, outer)]);
  }

  /* Return the innermost block around a node whose parent is open, or which is open itself. */
  function closedBlock(node, open) {
    let id = node.block;
    if (!open.has(id)) while (!open.has(blocks[id].parent)) id = blocks[id].parent;
    return id;
  }

  function insideBox(node, root, open, side) {
    const block = closedBlock(node, open);
    if (open.has(block)) {
      return { key: `node ${node.id}`, kind: "node", label: node.op, status: node.status, node: node.id };
    }
    const status = blockStatus(block, side);
    return { key: `block ${block}`, kind: "block", label: labelWithin(block, root), status, block };
  }

  function outsideBox(node, around) {
    const block = closedBlock(node, around);
    const { id } = node, kind = "neighbour";
    if (around.has(block)) return { key: `outside ${id}`, kind, label: node.op, node: id, block };
    return { key: `outside block ${block}`, kind, label: titleOf(block), node: id, block: blocks[block].parent };
  }

  function blockStatus(id, side) {
    const { changes } = blocks[id];
    return [GONE[side], "rewired"].find((status) => changes[side].has(status)) ?? "kept";
  }

  /* Return the label of a block in a view: with the open blocks between it and the view's own. */
  function labelWithin(id, root) {
    const labels = [];
    for (let each = id; each !== root; each = blocks[each].parent) labels.unshift(blocks[each].label);
    return labels.join("/");
  }

  // -- the two panes --------------------------------------------------------------------------------------------------

  const $ = (id) => document.getElementById(id);
  const html = (name, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...children);
    return element;
  };
  const panes = SIDES.map((side) => ({ scroll: $(`pane-${side}`), zoom: 1, boxes: [] }));
  let current = 0, selected = [new Set(), new Set()];

  function setZoom(pane, zoom) {
    const picture = pane.scroll.querySelector("svg");
    if (!picture) return;
    const { width, height } = picture.viewBox.baseVal;
    const middle = (pane.scroll.scrollLeft + pane.scroll.clientWidth / 2) / pane.zoom;
    const top = pane.scroll.scrollTop / pane.zoom;
    pane.zoom = Math.min(MAX_ZOOM, Math.max(MIN_ZOOM, zoom));
    picture.setAttribute("width", width * pane.zoom);
    picture.setAttribute("height", height * pane.zoom);
    pane.scroll.scrollLeft = middle * pane.zoom - pane.scroll.clientWidth / 2;
    pane.scroll.scrollTop = top * pane.zoom;
  }
  function fitZoom(pane, whole) {
    const { width, height } = pane.scroll.querySelector("svg").viewBox.baseVal;
    const across = pane.scroll.clientWidth / (width || 1), down = pane.scroll.clientHeight / (height || 1);
    setZoom(pane, whole ? Math.min(1, across, down) : Math.min(1, Math.max(LEAST_FIRST_ZOOM, across)));
    pane.scroll.scrollTop = 0;
    pane.scroll.scrollLeft = (width * pane.zoom - pane.scroll.clientWidth) / 2;
  }

  const positionOf = (box) => box.element.transform.baseVal[0].matrix;

  /* Show a block, with some nodes selected. */
  function show(block, nodes = [[], []]) {
    current = block;
    selected = nodes.map((each) => new Set(each));
    const open = openBlocks(block);
    SIDES.forEach((name, side) => {
      const { boxes, edges } = viewOf(block, open, side);
      for (const box of boxes) describe(box, side);
      const picture = drawGraph(boxes, edges);
      picture.setAttribute("aria-label", `${name}: ${titleOf(block)}, ${boxes.length} boxes`);
      const pane = panes[side];
      pane.boxes = boxes;
      const empty = boxes.length ? [] : [html("p", { className: "empty" }, "there is nothing of it here")];
      pane.scroll.replaceChildren(...empty, picture);
      boxes.sort((a, b) => positionOf(a).f - positionOf(b).f);
      boxes.forEach((box, index) => makeButton(box, index, pane, side));
      fitZoom(pane, false);
    });
    listBlocks(open);
    mark(true);
  }

  function describe(box, side) {
    const { kind, block, label } = box;
    if (kind === "block") {
      box.detail = sizeText(blocks[block]);
      box.title = `block ${titleOf(block)}, ${box.detail}${isChanged(blocks[block]) ? ", changed" : ""}; opens`;
    } else if (kind === "node") {
      const node = sides[side].nodes[box.node];
      box.title = `${node.op} ${node.name}, ${node.status}`;
    } else if (kind === "neighbour") box.title = `${box.isReader ? "to" : "from"} ${label}, outside; opens`;
    else box.title = `${kind} ${label}`;
    if (box.stubs?.length) box.title += `; reads ${box.stubs.join(", ")}`;
  }

  function makeButton(box, index, pane, side) {
    const { element } = box;
    element.setAttribute("tabindex", index === 0 ? 0 : -1);
    element.setAttribute("role", "button");
    element.setAttribute("aria-label", box.title);
    const act = () => {
      if (box.kind === "block") show(box.block);
      else if (box.kind === "neighbour") show(box.block, side === 0 ? [[box.node], []] : [[], [box.node]]);
      else if (box.kind === "node") select(side, box.node);
    };
    element.addEventListener("click", act);
    element.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
      if (event.key === "Enter" || event.key === " ") act();
      else if (event.key === "Escape" || event.key === "Backspace") show(blocks[current].parent);
      else if (step) {
        const next = pane.boxes[index + step];
        if (next) {
          element.setAttribute("tabindex", -1);
          next.element.setAttribute("tabindex", 0);
          next.element.focus();
        }
      } else return;
      if (!element.isConnected) pane.boxes[0]?.element.focus(); // another block is shown
      event.preventDefault();
    });
  }

  function select(side, node) {
    const partner = partners[side].get(node);
    selected = [new Set(), new Set()];
    selected[side].add(node);
    if (partner !== undefined) selected[1 - side].add(partner);
    mark(false);
  }

  /* Mark the selected nodes, or the blocks that they are in, and say what is known of them. */
  function mark(scroll) {
    panes.forEach((pane, side) => {
      const shown = [...selected[side]].map((id) => sides[side].nodes[id]);
      let first = null;
      for (const box of pane.boxes) {
        const isMarked = shown.some((node) => (box.kind === "node" ? node.id === box.node
          : box.kind === "block" && isWithin(node.block, box.block)));
        box.element.classList.toggle("selected", isMarked);
        if (isMarked) first ??= box;
      }
      if (scroll && first) {
        const { e: x, f: y } = positionOf(first);
        const { clientWidth, clientHeight } = pane.scroll;
        pane.scroll.scrollTo(x * pane.zoom - clientWidth / 2, y * pane.zoom - clientHeight / 2);
      }
    });
    const texts = SIDES.flatMap((name, side) => (
      [...selected[side]].slice(0, MAX_DESCRIBED).map((id) => describeNode(name, side, id))));
    const hint = html("p", {}, "Choose a node to see what became of it, and by which rewrite.");
    $("graph-detail").replaceChildren(...(texts.length ? texts : [hint]));
  }

  function describeNode(name, side, id) {
    const node = sides[side].nodes[id];
    const readers = sides[side].nodes.filter((each) => each.inputs.some(([from]) => from === id)).length;
    const status = html("span", { className: `mark ${node.status}` }, node.status === "kept" ? name : node.status);
    const line = html("p", {}, status, html("b", {}, ` ${node.op} `), html("code", {}, node.name),
      node.types ? ` ${node.types}` : "", `, read by ${readers} node${readers === 1 ? "" : "s"}`);
    for (const index of rewritesOf[side].get(id) ?? []) {
      const link = html("a", { href: `#rewrite-${index}` }, data.rewrites[index].name);
      link.addEventListener("click", () => openRewrite(index));
      line.append("; ", { removed: "removed by ", new: "made by ", rewired: "rewired by " }[node.status], link);
    }
    return line;
  }

  function openRewrite(index) {
    const details = $(`rewrite-${index}`);
    if (details) details.open = true;
  }

  // -- around the panes: path, list of blocks, search -----------------------------------------------------------------

  function listBlocks(open) {
    $("graph-path").replaceChildren(...ancestors(current).flatMap((id, index, all) => {
      const button = html("button", { type: "button" }, blocks[id].label);
      if (index === all.length - 1) button.setAttribute("aria-current", "true");
      button.addEventListener("click", () => show(id));
      return index ? [" / ", button] : [button];
    }));
    const rows = [];
    const list = (id, depth) => {
      for (const child of blocks[id].children) {
        rows.push(blockRow(child, depth));
        if (open.has(child)) list(child, depth + 1);
      }
    };
    rows.push(blockRow(current, 0));
    list(current, 1);
    $("graph-list").replaceChildren(...rows);
  }

  function blockRow(id, depth) {
    const block = blocks[id];
    const button = html("button", { type: "button" }, id === current ? block.label : labelWithin(id, block.parent), " ",
      html("small", {}, sizeText(block).replace(/ nodes?$/, "")));
    button.style.paddingLeft = `${0.4 + 0.8 * depth}em`;
    if (id === current) button.setAttribute("aria-current", "true");
    if (isChanged(block)) button.classList.add("changed");
    button.addEventListener("click", () => show(id));
    return html("li", {}, button);
  }

  function search(text) {
    const wanted = text.trim().toLowerCase();
    const results = $("graph-results");
    if (!wanted) {
      results.replaceChildren();
      results.hidden = true;
      return;
    }
    const found = [];
    const matches = (each) => each.toLowerCase().includes(wanted);
    for (const block of blocks) {
      if (matches(block.label)) found.push([`block ${titleOf(block.id)}`, "block", () => show(block.id)]);
    }
    sides.forEach(({ nodes }, side) => {
      for (const node of nodes) {
        if (side === 1 && partners[1].has(node.id)) continue; // listed on the other side
        if (!matches(node.op) && !matches(node.name)) continue;
        const partner = partners[side].get(node.id);
        const both = side === 0 ? [[node.id], partner === undefined ? [] : [partner]] : [[], [node.id]];
        found.push([`${node.op} ${node.name}`, node.status, () => show(inContext(node.block), both)]);
      }
    });
    const rows = found.slice(0, MAX_RESULTS).map(([label, status, act]) => {
      const button = html("button", { type: "button", className: `result ${status}` }, label);
      button.addEventListener("click", act);
      return html("li", {}, button);
    });
    const more = found.length > MAX_RESULTS ? `, the first ${MAX_RESULTS} are listed` : "";
    results.replaceChildren(html("li", { className: "count" }, `${found.length} found${more}`), ...rows);
    results.hidden = false;
  }

  for (const pane of panes) {
    let from = null;
    pane.scroll.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // a plain wheel scrolls, as everywhere
      event.preventDefault();
      setZoom(pane, pane.zoom * (event.deltaY < 0 ? ZOOM_STEP : 1 / ZOOM_STEP));
    }, { passive: false });
    pane.scroll.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0 && !event.target.closest(".box")) {
        from = { x: event.clientX + pane.scroll.scrollLeft, y: event.clientY + pane.scroll.scrollTop };
        pane.scroll.setPointerCapture(event.pointerId);
      }
    });
    pane.scroll.addEventListener("pointermove", (event) => {
      if (from) pane.scroll.scrollTo(from.x - event.clientX, from.y - event.clientY);
    });
    for (const name of ["pointerup", "pointercancel"]) pane.scroll.addEventListener(name, () => { from = null; });
    pane.scroll.addEventListener("keydown", (event) => {
      const zoom = { "+": ZOOM_STEP, "=": ZOOM_STEP, "-": 1 / ZOOM_STEP }[event.key];
      if (zoom) setZoom(pane, pane.zoom * zoom);
      else if (event.key === "0") fitZoom(pane, true);
      else return;
      event.preventDefault();
    });
  }
  const zoomAll = (factor) => panes.forEach((pane) => setZoom(pane, pane.zoom * factor));
  $("zoom-in").addEventListener("click", () => zoomAll(ZOOM_STEP));
  $("zoom-out").addEventListener("click", () => zoomAll(1 / ZOOM_STEP));
  $("zoom-fit").addEventListener("click", () => panes.forEach((pane) => fitZoom(pane, true)));
  $("graph-search").addEventListener("input", (event) => search(event.target.value));

  /* Return a block, or the one around it where it has few nodes: a place is understood by what is beside it. */
  function inContext(id) {
    while (id !== 0 && Math.max(...blocks[id].size) < CONTEXT) id = blocks[id].parent;
    return id;
  }

  // -- rewrites: their places and small pictures ----------------------------------------------------------------------

  /* Return the innermost block around some nodes. */
  function commonBlock(place) {
    const paths = place.flatMap((nodes, side) => nodes.map((id) => ancestors(sides[side].nodes[id].block)));
    let depth = 0;
    while (paths.every((path) => path[depth + 1] !== undefined && path[depth + 1] === paths[0][depth + 1])) depth += 1;
    return paths.length ? inContext(paths[0][depth]) : 0;
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button[data-rewrite]");
    if (!button) return;
    const place = data.rewrites[button.dataset.rewrite].places[button.dataset.place];
    show(commonBlock(place), place);
    $("graph").scrollIntoView();
  });

  show(0);
  document.documentElement.dataset.drawn = Math.round(performance.now() - started);
})();
