//! Lists of words that people see, and that a page explains one by one.

/// Defines an enum that is printed and serialised as the name of its variant, with `ALL` of them in order.
macro_rules! closed_list {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$doc:meta])* $word:ident,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
        pub enum $name {
            $($(#[$doc])* $word,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$word),+];

            /// The word.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$word => stringify!($word),)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}
pub(crate) use closed_list;

/// The words that tables of a page have in their first column, in order: those of tables whose heading begins with `heading`.
/// For the tests that hold such a page equal to a list.
#[cfg(test)]
pub(crate) fn words_of_tables(page: &str, heading: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if !line.starts_with(heading) {
            continue;
        }
        for row in lines.by_ref().take_while(|row| row.starts_with('|')) {
            let first = row.split('|').nth(1).unwrap_or_default();
            let quoted = first.split('`').skip(1).step_by(2);
            words.extend(quoted.map(str::to_owned));
        }
    }
    words
}
