/* Pictures of boxes and edges, laid out by dagre; text is only ever set as text. */
"use strict";
const drawing = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const MAX_LABEL = 30;
  function svg(name, attributes = {}, ...children) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  }

  const pen = document.createElement("canvas").getContext("2d");
  function textWidth(text, size) {
    pen.font = `${size}px system-ui, sans-serif`;
    return pen.measureText(text).width;
  }
  function short(text) { // of a path the end says the most
    if (text.length <= MAX_LABEL) return text;
    return /^\S*\/\S*$/.test(text) ? `…${text.slice(1 - MAX_LABEL)}` : `${text.slice(0, MAX_LABEL - 1)}…`;
  }

  /* Return the picture of boxes and edges, as large as it has to be. A box has a key, kind, label, status, and may have
     a second line of text and stubs. */
  function drawGraph(boxes, edges) {
    const graph = new dagre.graphlib.Graph();
    graph.setGraph({ nodesep: 16, ranksep: 26, edgesep: 8, marginx: 8, marginy: 8 });
    graph.setDefaultEdgeLabel(() => ({}));
    for (const box of boxes) {
      box.text = short(box.label);
      box.width = Math.max(textWidth(box.text, 12), box.detail ? textWidth(box.detail, 10) : 0) + 16;
      box.height = box.detail ? 34 : 22;
      box.stubTexts = (box.stubs ?? []).map(short);
      if (box.stubTexts.length > 2) box.stubTexts = [box.stubTexts[0], `and ${box.stubTexts.length - 1} more`];
      const stubWidth = Math.max(0, ...box.stubTexts.map((text) => textWidth(text, 10) + 26));
      graph.setNode(box.key, { width: box.width + 2 * stubWidth, height: box.height });
    }
    for (const [from, to] of edges) if (from !== to) graph.setEdge(from, to);
    dagre.layout(graph);
    const { width = 0, height = 0 } = boxes.length ? graph.graph() : {};
    const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group" });
    for (const edge of graph.edges()) {
      picture.append(svg("path", { class: "edge", d: curve(graph.edge(edge).points) }));
    }
    for (const box of boxes) picture.append(drawBox(box, graph.node(box.key)));
    return picture;
  }

  /* Return a path through points whose corners are rounded. */
  function curve(points) {
    const at = ({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`;
    const middle = (a, b) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
    const parts = [`M${at(points[0])}`];
    for (let i = 1; i < points.length - 1; i++) {
      const end = i + 2 < points.length ? middle(points[i], points[i + 1]) : points[i + 1];
      parts.push(`Q${at(points[i])} ${at(end)}`);
    }
    return parts.length > 1 ? parts.join("") : `${parts[0]}L${at(points.at(-1))}`;
  }

  function drawBox(box, { x, y }) {
    const { width, height, text, detail } = box;
    const group = svg("g", { class: `box ${box.kind} ${box.status ?? ""}`, transform: `translate(${x},${y})` },
      svg("title", {}, box.title ?? box.label),
      svg("rect", { x: -width / 2, y: -height / 2, width, height, rx: ["node", "block"].includes(box.kind) ? 3 : 11 }),
      svg("text", { y: detail ? -3 : 4 }, text));
    if (detail) group.append(svg("text", { y: 11, class: "detail" }, detail));
    box.stubTexts.forEach((stub, i) => {
      const place = (i - (box.stubTexts.length - 1) / 2) * 13;
      group.append(svg("line", { x1: width / 2, x2: width / 2 + 18, y1: place, y2: place, class: "stub" }),
        svg("text", { x: width / 2 + 22, y: place + 3.5, class: "stub" }, stub));
    });
    box.element = group;
    return group;
  }

  /* Draw the small pictures: `[[label, kind]…]` and `[[from, to]…]` of what stood there, and of what is there now. */
  function drawPictures() {
    const pictures = JSON.parse(document.getElementById("picture-data")?.textContent ?? "[]");
    for (const place of document.querySelectorAll("[data-picture]")) {
      const pair = pictures[place.dataset.picture]?.map(([labels, edges]) => {
        const boxes = labels.map(([label, kind], key) => (
          { key: String(key), label, kind: kind.split(" ")[0], status: kind }));
        return drawGraph(boxes, edges.map((edge) => edge.map(String)));
      });
      if (!pair) continue; // a pass has none
      pair.forEach((picture) => picture.setAttribute("aria-hidden", "true")); // the algebra beside it says the same
      const arrow = Object.assign(document.createElement("span"), { className: "arrow", textContent: "→" });
      place.replaceChildren(pair[0], arrow, pair[1]);
    }
  }

  return { drawGraph, drawPictures };
})();
drawing.drawPictures();
