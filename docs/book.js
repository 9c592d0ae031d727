// The keyboard gets to the text without passing the whole table of contents.
const skip = document.createElement("a");
skip.className = "skip";
skip.href = "#mdbook-content";
skip.textContent = "Skip to the text";
document.getElementById("mdbook-content").tabIndex = -1;
document.body.prepend(skip);
