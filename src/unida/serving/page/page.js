"use strict";
// Text from the server or from file names goes into the page as text only, never as HTML.

const AT_ONCE = 3; // images on their way to the server
const MOST_CARDS = 60;
const byId = (id) => document.getElementById(id);
let token = sessionStorage.getItem("token") || "";
let about = null;
let running = 0;
const waiting = [];

function say(text) {
  byId("status").textContent = text;
}

/** For screen readers: what a card shows to those who see it. */
function tell(text) {
  byId("told").textContent = text;
}

const percent = (value) => `${(100 * value).toFixed(1)} %`; // for people
const length = (value) => `${100 * value}%`; // for CSS, which allows no space

/** fetch with the token. Asks for it where it is missing or wrong; waits where the server says so. */
async function ask(path, options = {}) {
  for (let attempt = 0; ; attempt++) {
    const headers = token ? { Authorization: `Bearer ${token}` } : {};
    const response = await fetch(path, { ...options, headers });
    if (response.status === 401) {
      await askForToken(token ? "That token is wrong." : "It was printed when the server was started.");
      continue;
    }
    const pause = Number(response.headers.get("Retry-After"));
    if (![429, 503].includes(response.status) || !pause || attempt >= 5) return response;
    await new Promise((resolve) => setTimeout(resolve, 1000 * pause));
  }
}

let tokenAsked = null; // several requests may miss it: one dialog is enough

function askForToken(note) {
  if (tokenAsked) return tokenAsked;
  byId("token-note").textContent = note;
  byId("token-dialog").showModal();
  tokenAsked = new Promise((resolve) => {
    byId("token-form").onsubmit = (event) => {
      event.preventDefault();
      token = byId("token").value.trim();
      sessionStorage.setItem("token", token);
      byId("token").value = "";
      byId("token-dialog").close();
      tokenAsked = null;
      resolve();
    };
  });
  return tokenAsked;
}

async function learnAbout() {
  const response = await ask("about");
  if (!response.ok) throw new Error((await response.json()).detail);
  about = await response.json();
  byId("run").textContent = `${about.run}, ${about.classes.length} classes`;
  byId("how").textContent = about.how;
  byId("limits").textContent =
    `JPEG, PNG, WebP, BMP, TIFF or GIF; up to ${about.image_bytes / 1e6} MB and ${about.pixels / 1e6} million pixels each.`;
  byId("classes").replaceChildren(...about.classes.map((name) => element("li", name)));
  byId("change-token").hidden = !token;
  if (!about.is_ready) {
    if (about.source_all) say(`Looking at labelled images: ${about.source_done} of ${about.source_all}. You can already ask.`);
    setTimeout(() => learnAbout().catch(() => {}), 3000);
  } else if (byId("status").textContent.startsWith("Looking at")) {
    say("");
  }
}

function element(kind, text) {
  const made = document.createElement(kind);
  made.textContent = text;
  return made;
}

/** The newest files on top, those that come together in their own order. */
function add(files) {
  const added = [...files].map((file) => ({ file, card: newCard(file) }));
  if (!byId("status").textContent.startsWith("Looking at")) say("");
  const results = byId("results");
  results.prepend(...added.map(({ card }) => card));
  while (results.children.length > MOST_CARDS) remove(results.lastElementChild);
  byId("clear").hidden = results.children.length === 0;
  waiting.push(...added);
  work();
}

function newCard(file) {
  const card = byId("card").content.firstElementChild.cloneNode(true);
  card.classList.add("waits");
  const image = card.querySelector(".sent");
  image.alt = `The image ${file.name}`;
  image.onerror = () => {
    image.hidden = true;
    card.querySelector(".no-preview").hidden = false;
  };
  image.src = URL.createObjectURL(file);
  card.querySelector(".name").textContent = file.name;
  card.querySelector(".label").textContent = "…";
  return card;
}

function remove(card) {
  URL.revokeObjectURL(card.querySelector(".sent").src);
  card.remove();
}

function work() {
  while (running < AT_ONCE && waiting.length) {
    running++;
    const { file, card } = waiting.shift();
    predict(file, card).finally(() => {
      running--;
      work();
    });
  }
}

/** A pasted or dropped file may have a name that the server refuses. */
function plainName(name) {
  const plain = name.replace(/[\\/]/g, "_").replace(/[^\x20-\x7e\u00a0-\uffff]/g, "").slice(-120);
  return plain && plain !== ".." ? plain : "image";
}

async function predict(file, card) {
  try {
    if (!about) await learnAbout();
    if (file.size > about.image_bytes) throw new Error(`${file.name}: has more than ${about.image_bytes / 1e6} MB`);
    const form = new FormData();
    form.append("images", file, plainName(file.name));
    const response = await ask("predict?explain=true", { method: "POST", body: form });
    const content = await response.json();
    if (!response.ok) throw new Error(content.detail);
    show(card, content.answers[0], content.threshold);
  } catch (error) {
    card.classList.add("is-problem");
    const reason = error instanceof TypeError ? "The server cannot be reached." : error.message;
    card.querySelector(".label").textContent = reason;
    for (const part of card.querySelectorAll(".row, .bar, .near, .words")) part.hidden = true;
    tell(reason);
  }
  card.classList.remove("waits");
}

function show(card, answer, threshold) {
  const isUnknown = answer.label === "unknown";
  card.classList.toggle("is-unknown", isUnknown);
  card.querySelector(".label").textContent = answer.label;
  card.querySelector(".verdict").textContent =
    (isUnknown ? `No known class. The best of them would be ${answer.best_class}.` : "A known class.") +
    (answer.is_of_target ? " The run has seen this image: this is its answer." : "");
  card.querySelector(".probability").textContent = percent(answer.probability);
  card.querySelector(".unknown").textContent = answer.unknown_score.toFixed(3);
  card.querySelector(".threshold").textContent = `Unknown above ${threshold.toFixed(3)}, the mark on the bar.`;
  const [first, second] = card.querySelectorAll(".fill");
  first.style.width = length(answer.probability);
  second.style.width = length(answer.unknown_score);
  card.querySelector(".mark").style.left = length(Math.min(Math.max(threshold, 0), 1));
  strip(card.querySelector(".group.target"), answer.explanation.target, "A target image, answered as");
  strip(card.querySelector(".group.source"), answer.explanation.source, "A labelled image of the class");
  const note = card.querySelector(".waiting");
  note.hidden = about.is_ready || answer.explanation.source.length > 0;
  note.textContent = "The labelled images are still being looked at. Ask again later to see the nearest ones.";
  words(card, answer.explanation);
  tell(`${answer.name}: ${answer.label}, probability ${percent(answer.probability)}, unknown score ${answer.unknown_score.toFixed(2)}`);
}

function strip(group, pictures, text) {
  group.hidden = pictures.length === 0;
  const list = group.querySelector(".strip");
  for (const { picture, text: name } of pictures) {
    const item = document.createElement("li");
    const image = document.createElement("img");
    image.alt = `${text} ${name}`;
    const caption = element("span", name);
    if (name === "unknown") caption.className = "unknown-name";
    item.append(image, caption);
    list.append(item);
    load(image, picture).catch(() => item.remove());
  }
}

/** By fetch, because an img element cannot send a token. */
async function load(image, path) {
  const response = await ask(path);
  if (!response.ok) throw new Error(path);
  const address = URL.createObjectURL(await response.blob());
  image.onload = () => URL.revokeObjectURL(address);
  image.src = address;
}

let cards = 0; // names of radio buttons must differ from card to card

function words(card, explanation) {
  const several = explanation.words.filter((word) => word.map.length > 1); // a map of one place shows nothing
  if (!several.length) return;
  const canvas = card.querySelector(".heat");
  const [left, top, width, height] = explanation.seen;
  Object.assign(canvas.style, { left: length(left), top: length(top), width: length(width), height: length(height) });
  const group = `words-${++cards}`;
  const choices = [["none", null], ...several.map((word) => [`${word.word} (${percent(word.share)})`, word])];
  for (const [text, word] of choices) {
    const choice = document.createElement("label");
    const radio = document.createElement("input");
    Object.assign(radio, { type: "radio", name: group, checked: word === several[0] });
    radio.onchange = () => paint(canvas, word);
    choice.append(radio, element("span", text));
    card.querySelector(".choices").append(choice);
  }
  card.querySelector(".words").hidden = false;
  paint(canvas, several[0]);
}

/** A pixel for each place; the browser makes it as large as the image, with smooth edges. */
function paint(canvas, word) {
  canvas.hidden = word === null;
  if (word === null) return;
  const rows = word.map;
  canvas.width = rows[0].length;
  canvas.height = rows.length;
  const largest = Math.max(...rows.flat(), 1e-6);
  const image = new ImageData(canvas.width, canvas.height);
  rows.flat().forEach((value, place) => {
    image.data.set([255, 90, 20, Math.round((200 * value) / largest)], 4 * place);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function start() {
  byId("curl").textContent = `curl -F images=@photo.jpg ${location.origin}/predict`;
  byId("files").onchange = (event) => {
    add(event.target.files);
    event.target.value = "";
  };
  byId("clear").onclick = () => {
    [...byId("results").children].forEach(remove);
    byId("clear").hidden = true;
    say("All answers are cleared.");
    byId("files").focus();
  };
  byId("change-token").onclick = () => askForToken("The next requests will use this one.");
  byId("token-dialog").oncancel = (event) => event.preventDefault();
  const drop = byId("drop");
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) drop.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    add(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => {
    const files = event.clipboardData.files;
    if (files.length) add(files);
    else if (!byId("token-dialog").open) say("There is no image in what you pasted.");
  });
  learnAbout().catch((error) => {
    byId("run").textContent = "";
    say(error instanceof TypeError ? "The server cannot be reached." : error.message);
  });
}

start();
