//! Whether each link of the book leads somewhere: to a page and a heading that it has, or to a file of the repository, which
//! is then copied into the book. Addresses elsewhere are looked at only for their form: a check must not fail because
//! another's server is down.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result};

use super::html;
use crate::sources;

/// Pages that mdBook makes of itself; the last is the first page of the summary once more.
const MADE_BY_MDBOOK: [&str; 3] = ["404.html", "toc.html", "index.html"];

pub(super) fn check(root: &Path, site: &Path) -> Result<Vec<String>> {
    let site = Site::read(root, site)?;
    let mut findings = Vec::new();
    let is_ours = |name: &Path| !MADE_BY_MDBOOK.iter().any(|made| name == Path::new(made));
    for (name, page) in site.pages.iter().filter(|(name, _)| is_ours(name)) {
        for link in &page.links {
            if let Some(problem) = site.problem(name, link)? {
                findings.push(format!("{}: {link}: {problem}", name.display()));
            }
        }
    }
    Ok(findings)
}

struct Site<'a> {
    root: &'a Path,
    folder: &'a Path,
    /// By their paths below the folder.
    pages: BTreeMap<PathBuf, Page>,
}

struct Page {
    ids: BTreeSet<String>,
    links: BTreeSet<String>,
}

impl Page {
    fn new(text: &str) -> Self {
        let tags = || html::tags(text);
        let of = |name: &'static str| tags().filter_map(move |tag| tag.attribute(name));
        Self {
            ids: of("id").collect(),
            links: of("href").chain(of("src")).collect(),
        }
    }
}

impl<'a> Site<'a> {
    fn read(root: &'a Path, folder: &'a Path) -> Result<Self> {
        let is_page = |path: &Path| {
            path.extension()
                .is_some_and(|extension| extension == "html")
        };
        let mut pages = BTreeMap::new();
        for file in sources::files(folder, &|_| false, &is_page)? {
            let text = fs::read_to_string(&file)?;
            pages.insert(file.strip_prefix(folder)?.to_owned(), Page::new(&text));
        }
        Ok(Self {
            root,
            folder,
            pages,
        })
    }

    /// What is wrong with a link of a page, if anything is.
    fn problem(&self, page: &Path, link: &str) -> Result<Option<String>> {
        if link.contains(':') {
            return Ok(malformed(link));
        }
        let (path, id) = link.split_once('#').unwrap_or((link, ""));
        let target = if path.is_empty() {
            page.to_owned()
        } else {
            let folder = page.parent().context("a page is in a folder")?;
            normal(&folder.join(path))
        };
        if let Some(page) = self.pages.get(&target) {
            let is_there = id.is_empty() || page.ids.contains(id);
            return Ok((!is_there).then(|| format!("that page has no heading #{id}")));
        }
        if target
            .extension()
            .is_some_and(|extension| extension == "html")
        {
            return Ok(Some("the book has no such page".to_owned()));
        }
        self.bring(&target)
    }

    /// Copies a file that is linked to into the book.
    fn bring(&self, path: &Path) -> Result<Option<String>> {
        let (source, target) = (self.root.join(path), self.folder.join(path));
        if target.is_file() {
            return Ok(None);
        }
        if !source.is_file() {
            return Ok(Some("the repository has no such file".to_owned()));
        }
        fs::create_dir_all(target.parent().context("a file is in a folder")?)?;
        fs::copy(source, target)?;
        Ok(None)
    }
}

/// The path without `.` and `..`.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => {
                normal.pop();
            }
            Component::Normal(name) => normal.push(name),
            _ => {}
        }
    }
    normal
}

/// What is wrong with an address elsewhere, if anything is.
fn malformed(link: &str) -> Option<String> {
    if link.starts_with("data:") || link.starts_with("mailto:") {
        return None;
    }
    let Some(address) = link.strip_prefix("https://") else {
        return Some("an address elsewhere begins with https://".to_owned());
    };
    let host = address.split(['/', '#', '?']).next().unwrap_or_default();
    let is_host = host.contains('.') && !host.contains(char::is_whitespace);
    (!is_host).then(|| format!("{host:?} is no host"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The findings of a site of these files, beside a repository that has `values.yaml`.
    fn findings(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let (root, site) = (folder.path().join("root"), folder.path().join("site"));
        fs::create_dir_all(&root).expect("a folder");
        fs::create_dir_all(site.join("docs")).expect("a folder");
        fs::write(root.join("values.yaml"), "").expect("a file");
        for (name, text) in files {
            fs::write(site.join(name), text).expect("a file");
        }
        check(&root, &site).expect("a site")
    }

    #[test]
    fn a_link_leads_to_a_page_a_heading_or_a_file() {
        let page = "<a href=\"docs/b.html#there\"></a><a href=\"values.yaml\"></a>\
            <a href=\"https://kubernetes.io/docs/#x\"></a>";
        let other = "<h2 id=\"there\"><a href=\"../a.html\"></a><a href=\"#there\"></a></h2>";
        let found = findings(&[("a.html", page), ("docs/b.html", other)]);
        assert!(found.is_empty(), "{found:?}");
    }

    #[test]
    fn a_link_that_leads_nowhere_is_named() {
        for (link, problem) in [
            ("b.html", "a.html: b.html: the book has no such page"),
            ("#no", "a.html: #no: that page has no heading #no"),
            (
                "no.yaml",
                "a.html: no.yaml: the repository has no such file",
            ),
            ("docs", "a.html: docs: the repository has no such file"),
            (
                "http://kubernetes.io",
                "a.html: http://kubernetes.io: an address elsewhere begins with https://",
            ),
            (
                "https://kubernetes",
                "a.html: https://kubernetes: \"kubernetes\" is no host",
            ),
        ] {
            let page = format!("<a href=\"{link}\"></a>");
            assert_eq!(findings(&[("a.html", &page)]), [problem]);
        }
    }
}
