//! What a program is linked with for each architecture.

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail, ensure};

use crate::commit::line;

/// An architecture of nodes, by the name that Kubernetes has for it (`kubernetes.io/arch`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Architecture {
    Amd64,
    Arm64,
}

/// The C compiler that links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Linker {
    /// Its name, as Debian and Fedora have it.
    pub(crate) program: &'static str,
    /// The packages of Debian that have it and its libc.
    packages: &'static str,
}

const NATIVE: Linker = Linker {
    program: "cc",
    packages: "gcc libc6-dev",
};
const TO_AMD64: Linker = Linker {
    program: "x86_64-linux-gnu-gcc",
    packages: "gcc-x86-64-linux-gnu libc6-dev-amd64-cross",
};
const TO_ARM64: Linker = Linker {
    program: "aarch64-linux-gnu-gcc",
    packages: "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
};

impl Architecture {
    /// The architecture of this machine.
    pub(crate) fn native() -> Result<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => bail!(
                "there is no image for {other}, the architecture of this machine; give --arch amd64 or --arch arm64"
            ),
        }
    }

    /// Rust's name for it, with Linux and glibc.
    pub(crate) fn triple(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    pub(crate) fn linker(self) -> Linker {
        let native = cfg!(target_os = "linux") && Self::native().ok() == Some(self);
        match self {
            _ if native => NATIVE,
            Self::Amd64 => TO_AMD64,
            Self::Arm64 => TO_ARM64,
        }
    }

    /// Fails if a static program for it cannot be linked here, and says what to install.
    pub(crate) fn check(self) -> Result<()> {
        let missing = self.missing();
        ensure!(
            missing.is_empty(),
            "programs cannot be linked statically for {self} here; missing: {}",
            missing.join("; ")
        );
        Ok(())
    }

    /// What a static program for it needs and this machine lacks, each with what installs it.
    pub(crate) fn missing(self) -> Vec<String> {
        let (triple, linker) = (self.triple(), self.linker());
        let mut missing = Vec::new();
        let library = line("rustc", &["--print", "target-libdir", "--target", triple]);
        if !library.is_some_and(|path| Path::new(&path).is_dir()) {
            missing.push(format!(
                "Rust's standard library for {triple} (rustup target add {triple})"
            ));
        }
        // gcc prints the name as it was given where it has no such file.
        let libc = line(linker.program, &["-print-file-name=libc.a"]);
        if !libc.is_some_and(|path| Path::new(&path).is_file()) {
            missing.push(format!(
                "the C compiler {} with a libc.a (Debian: apt-get install {})",
                linker.program, linker.packages
            ));
        }
        missing
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_lacks_nothing_for_its_own_programs() {
        // Without a static libc this fails, as `cargo xtask image` would.
        assert_eq!(Architecture::native().unwrap().missing(), [""; 0]);
    }
}
