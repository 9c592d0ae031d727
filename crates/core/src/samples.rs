//! Random objects: samples with up to four random changes. Most are nearly valid, since one change breaks at most one rule;
//! some are unchanged, some break many rules. Feature `samples`, for tests alone.

use serde_json::{Map, Value, json};

/// Larger samples, in bytes of JSON, are left out: the API server takes longer over one than over all others together.
const LARGEST: usize = 16 * 1024;

/// An endless iterator of objects, determined by its seed.
#[derive(Clone, Debug)]
pub struct Mutations {
    random: Random,
    bases: Vec<Value>,
    strings: Vec<String>,
}

impl Mutations {
    /// The objects of this seed, each made of one of these; `words` are put where a text may be of interest.
    pub fn new(
        seed: u64,
        bases: impl IntoIterator<Item = Value>,
        words: impl IntoIterator<Item = String>,
    ) -> Self {
        let bases = bases.into_iter();
        let mut strings: Vec<_> = STRINGS.iter().map(|&one| one.to_owned()).collect();
        strings.extend(words);
        let lengths = [15, 16, 63, 64, 253, 254, 317, 318, 4096, 4097];
        strings.extend(lengths.map(|length| "x".repeat(length)));
        Self {
            random: Random(seed),
            bases: bases
                .filter(|object| object.to_string().len() < LARGEST)
                .collect(),
            strings,
        }
    }

    fn mutate(&mut self, object: &mut Value) {
        let mut places = Vec::new();
        list_places(&object["spec"], "/spec", &mut places);
        let place = self.random.one(&places).clone();
        let Some((parent, last)) = place.rsplit_once('/') else {
            return;
        };
        let donated = self.donated(&place);
        let Some(parent) = object.pointer_mut(parent) else {
            return;
        };
        let key = last.replace("~1", "/").replace("~0", "~");
        match parent {
            Value::Object(fields) => self.mutate_field(fields, &key, donated),
            Value::Array(items) => self.mutate_item(items, &key, donated),
            _ => {}
        }
    }

    /// The value of another sample in this place.
    fn donated(&mut self, place: &str) -> Option<Value> {
        let other = self.random.one(&self.bases);
        other.pointer(place).cloned()
    }

    fn mutate_field(&mut self, fields: &mut Map<String, Value>, key: &str, donated: Option<Value>) {
        match self.random.below(10) {
            0 => {
                fields.remove(key);
            }
            1 => {
                // Renames a key: in a map it is the user's, in an object the schema does not know it.
                if let Some(value) = fields.remove(key) {
                    let renamed = self.string(key);
                    fields.insert(renamed, value);
                }
            }
            2 => {
                let (key, value) = (self.string("key"), self.string("value"));
                fields.insert(key, value.into());
            }
            _ => {
                let old = fields.get(key).cloned().unwrap_or_default();
                let new = donated.unwrap_or_else(|| self.value(&old));
                fields.insert(key.to_owned(), new);
            }
        }
    }

    fn mutate_item(&mut self, items: &mut Vec<Value>, index: &str, donated: Option<Value>) {
        let Some(index) = index.parse().ok().filter(|index| *index < items.len()) else {
            return;
        };
        match self.random.below(6) {
            0 => {
                items.remove(index);
            }
            1 | 2 => {
                // Duplicates an item, so that a later change can tell the copies apart.
                let copy = items[index].clone();
                items.push(copy);
            }
            _ => {
                let new = donated.unwrap_or_else(|| self.value(&items[index]));
                items[index] = new;
            }
        }
    }

    /// A replacement for `old`, in seven of eight cases of the same type.
    fn value(&mut self, old: &Value) -> Value {
        if self.random.below(8) == 0 {
            let others = [
                json!(null),
                json!({}),
                json!([]),
                json!(1),
                json!("x"),
                json!(true),
                json!(1.5),
                json!([{}]),
                json!({"": ""}),
            ];
            return self.random.one(&others).clone();
        }
        match old {
            Value::String(old) => self.string(old).into(),
            Value::Number(old) => {
                let old = old.as_i64().unwrap_or_default();
                let near = [
                    old.saturating_sub(1),
                    old.saturating_add(1),
                    old.wrapping_neg(),
                ];
                let numbers = [NUMBERS, &near].concat();
                (*self.random.one(&numbers)).into()
            }
            Value::Array(_) => json!([]),
            Value::Object(_) => json!({}),
            other => other.clone(),
        }
    }

    fn string(&mut self, old: &str) -> String {
        let piece = self.random.one(PIECES);
        let cuts: Vec<_> = old
            .char_indices()
            .map(|(at, _)| at)
            .chain([old.len()])
            .collect();
        let at = *self.random.one(&cuts);
        let (head, tail) = old.split_at(at);
        match self.random.below(5) {
            0 => self.random.one(&self.strings).clone(),
            1 => format!("{head}{}", tail.chars().skip(1).collect::<String>()),
            2 => old.to_ascii_uppercase(),
            _ => format!("{head}{piece}{tail}"),
        }
    }
}

impl Iterator for Mutations {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        let mut object = self.random.one(&self.bases).clone();
        for _ in 0..self.random.below(5) {
            self.mutate(&mut object);
        }
        Some(object)
    }
}

/// All places below a value, as JSON pointers.
fn list_places(value: &Value, place: &str, places: &mut Vec<String>) {
    places.push(place.to_owned());
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let key = key.replace('~', "~0").replace('/', "~1");
                list_places(value, &format!("{place}/{key}"), places);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                list_places(value, &format!("{place}/{index}"), places);
            }
        }
        _ => {}
    }
}

const NUMBERS: &[i64] = &[
    0,
    1,
    -1,
    3600,
    3601,
    65_535,
    65_536,
    i32::MAX as i64,
    i32::MAX as i64 + 1,
    i64::MAX,
    i64::MIN,
];

const PIECES: &[&str] = &[
    "/",
    "-",
    ".",
    "_",
    "#",
    " ",
    "%",
    "%2",
    "%2f",
    ":",
    "@",
    "?",
    "\n",
    "\r",
    "\t",
    "\u{0}",
    "\u{7f}",
    "\u{85}",
    "é",
    "\u{1f600}",
    "\"",
    "'",
    "\\",
    "[",
    "]",
    "A",
    "a",
    "0",
    "//",
    "..",
    "--",
];

const STRINGS: &[&str] = &[
    "", "a", "app", "tier", "In", "Exists", "HTTP", "https", "80", "http", "a.b/c", "/a:b", "a:b",
    "//a", "//a:b", "//a@b/", "/a?%", "/#%", "*",
];

/// `SplitMix64` (Steele, Lea, Flood 2014): small, and the same everywhere.
#[derive(Clone, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn one<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let count = u64::try_from(all.len()).unwrap_or(u64::MAX);
        let index = usize::try_from(self.below(count)).unwrap_or(0);
        &all[index]
    }
}
