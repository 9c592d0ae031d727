// The keyboard gets to the text without passing the whole table of contents.
const skip = document.createElement("a");
skip.className = "skip";
skip.href = "#mdbook-content";
skip.textContent = "Skip to the text";
document.getElementById("mdbook-content").tabIndex = -1;
document.body.prepend(skip);

// mdBook's toggle of the table of contents is a label, which only a pointer reaches.
const toggle = document.getElementById("mdbook-sidebar-toggle");
toggle.tabIndex = 0;
toggle.role = "button";
toggle.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        toggle.click();
    }
});

// What is wider than the page scrolls by itself; the keyboard has to reach it for that (WCAG 2.2, 2.1.1).
const reachScrolling = () => {
    for (const region of document.querySelectorAll("main .table-wrapper, main pre > code")) {
        if (region.scrollWidth > region.clientWidth) {
            region.tabIndex = 0;
            region.role = "region";
            region.ariaLabel = region.matches("code") ? "Code that scrolls" : "Table that scrolls";
        } else {
            region.removeAttribute("tabindex");
            region.removeAttribute("role");
            region.removeAttribute("aria-label");
        }
    }
};
reachScrolling();
addEventListener("resize", reachScrolling);
