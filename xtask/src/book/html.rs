//! The tags of a page that mdBook has written, as far as links need them.

/// Names and attributes of the opening tags, in their order. Scripts and comments are left out.
pub(super) fn tags(page: &str) -> impl Iterator<Item = Tag<'_>> {
    let mut rest = page;
    std::iter::from_fn(move || {
        loop {
            let start = rest.find('<')?;
            rest = &rest[start + 1..];
            if let Some(comment) = rest.strip_prefix("!--") {
                rest = comment.split_once("-->").map_or("", |(_, after)| after);
                continue;
            }
            let end = end_of_tag(rest);
            let tag = Tag::new(&rest[..end]);
            rest = &rest[end..];
            if tag.name == "script" {
                rest = rest.split_once("</script").map_or("", |(_, after)| after);
            }
            if tag.name.starts_with(|c: char| c.is_ascii_alphabetic()) {
                return Some(tag);
            }
        }
    })
}

/// Where the `>` is that ends a tag, which is none within quotes.
fn end_of_tag(text: &str) -> usize {
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (None, '>') => return at,
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    text.len()
}

#[derive(Debug, PartialEq)]
pub(super) struct Tag<'a> {
    pub(super) name: &'a str,
    attributes: &'a str,
}

impl<'a> Tag<'a> {
    fn new(text: &'a str) -> Self {
        let end = text.find(|c: char| c.is_whitespace() || c == '/');
        // The name of a closing tag is empty.
        let (name, attributes) = text.split_at(end.unwrap_or(text.len()));
        Self { name, attributes }
    }

    /// The value of `name="…"`, with the one character reference that addresses have.
    pub(super) fn attribute(&self, name: &str) -> Option<String> {
        let start = format!("{name}=\"");
        let mut places = self.attributes.match_indices(&start);
        // Not the end of another name, such as `data-id`.
        let (at, _) =
            places.find(|(at, _)| self.attributes[..*at].ends_with(char::is_whitespace))?;
        let value = &self.attributes[at + start.len()..];
        let (value, _) = value.split_once('"')?;
        Some(value.replace("&amp;", "&"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_ids_are_found_and_text_is_not() {
        let page = "<!-- <a href=\"no\"> --><h2 id=\"a-b\"><a class=\"x > y\" href=\"b.html?c&amp;d\">\
            </a></h2><script>\"<a href='no'>\"</script><p data-id=\"no\">href=\"no\" id=\"no\"";
        let found: Vec<_> = tags(page)
            .flat_map(|tag| ["href", "id"].map(|name| tag.attribute(name)))
            .flatten()
            .collect();
        assert_eq!(found, ["a-b", "b.html?c&d"]);
    }
}
