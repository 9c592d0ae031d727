//! The files of an image, as the tar archive that the specification calls a layer.

use std::collections::BTreeMap;
use std::io;

use tar::{EntryType, Header};

/// Files by their paths, which begin without a slash. Parent directories that are not named get mode 0755.
#[derive(Clone, Debug, Default)]
pub struct Layer(BTreeMap<String, Entry>);

#[derive(Clone, Debug)]
enum Entry {
    Directory { mode: u32 },
    File { mode: u32, content: Vec<u8> },
    Link { target: String },
}

impl Layer {
    /// A layer without files.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory with these permissions.
    #[must_use]
    pub fn directory(self, path: &str, mode: u32) -> Self {
        self.with(path, Entry::Directory { mode })
    }

    /// Adds a file with these permissions.
    #[must_use]
    pub fn file(self, path: &str, mode: u32, content: Vec<u8>) -> Self {
        self.with(path, Entry::File { mode, content })
    }

    /// Adds a symbolic link.
    #[must_use]
    pub fn link(self, path: &str, target: &str) -> Self {
        let target = target.to_owned();
        self.with(path, Entry::Link { target })
    }

    /// The paths of all files, directories and links, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    fn with(mut self, path: &str, entry: Entry) -> Self {
        for (end, _) in path.match_indices('/') {
            let parent = path[..end].to_owned();
            let directory = Entry::Directory { mode: 0o755 };
            self.0.entry(parent).or_insert(directory);
        }
        self.0.insert(path.to_owned(), entry);
        self
    }

    /// The tar archive. All files have the time `modified`, in seconds since 1970, and belong to root.
    pub(crate) fn archive(&self, modified: u64) -> io::Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            entry.append(&mut archive, path, modified)?;
        }
        archive.into_inner()
    }
}

impl Entry {
    fn append(
        &self,
        archive: &mut tar::Builder<Vec<u8>>,
        path: &str,
        modified: u64,
    ) -> io::Result<()> {
        let mut header = header(modified);
        match self {
            Self::Directory { mode } => {
                header.set_entry_type(EntryType::Directory);
                header.set_mode(*mode);
                archive.append_data(&mut header, format!("{path}/"), io::empty())
            }
            Self::File { mode, content } => {
                header.set_mode(*mode);
                header.set_size(content.len() as u64);
                archive.append_data(&mut header, path, content.as_slice())
            }
            Self::Link { target } => {
                header.set_entry_type(EntryType::Symlink);
                header.set_mode(0o777);
                archive.append_link(&mut header, path, target)
            }
        }
    }
}

/// The header of an empty file of root's.
fn header(modified: u64) -> Header {
    let mut header = Header::new_ustar();
    header.set_entry_type(EntryType::Regular);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(modified);
    header.set_size(0);
    header
}
