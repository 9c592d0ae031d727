//! Programs that an image without a libc can run: 64-bit ELF, linked statically.
//!
//! A few header fields are all that is read, by their offsets in `elf(5)`.

use std::fmt;

/// An architecture that leadsman is built for, by the name that OCI and Kubernetes (`kubernetes.io/arch`) give it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// `x86_64` in Rust.
    Amd64,
    /// `aarch64` in Rust.
    Arm64,
}

/// A program without an interpreter, with what it was built for.
#[derive(Clone, Debug)]
pub struct StaticProgram {
    architecture: Architecture,
    content: Vec<u8>,
}

/// Why a file is no program for an image without a libc.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// A script, an object of another system or no program at all.
    #[error("it is no 64-bit little-endian ELF program")]
    NotElf,
    /// An architecture that there is no name for here.
    #[error("it is for ELF machine {0}; there are images for amd64 (62) and arm64 (183) only")]
    Machine(u16),
    /// The program needs a dynamic linker, which an image from scratch has not.
    #[error(
        "it is linked dynamically, and the image has no dynamic linker; link it with `-C target-feature=+crt-static`"
    )]
    Dynamic,
}

impl StaticProgram {
    /// Takes a program's file if it can run without any other.
    pub fn new(content: Vec<u8>) -> Result<Self, ProgramError> {
        let header = Elf(&content);
        let architecture = header.architecture()?;
        if header.has_interpreter() {
            return Err(ProgramError::Dynamic);
        }
        Ok(Self {
            architecture,
            content,
        })
    }

    /// The architecture that it was built for.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// The bytes of its file.
    pub fn into_content(self) -> Vec<u8> {
        self.content
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

struct Elf<'a>(&'a [u8]);

impl Elf<'_> {
    /// The magic number, 64 bits, little-endian.
    const IDENTIFICATION: &'static [u8] = b"\x7fELF\x02\x01";
    /// `PT_INTERP`.
    const INTERPRETER: usize = 3;

    fn architecture(&self) -> Result<Architecture, ProgramError> {
        if !self.0.starts_with(Self::IDENTIFICATION) {
            return Err(ProgramError::NotElf);
        }
        match self.number(18, 2) {
            62 => Ok(Architecture::Amd64),
            183 => Ok(Architecture::Arm64),
            machine => Err(ProgramError::Machine(
                u16::try_from(machine).expect("two bytes were read"),
            )),
        }
    }

    fn has_interpreter(&self) -> bool {
        let (table, entry, entries) = (self.number(32, 8), self.number(54, 2), self.number(56, 2));
        (0..entries)
            .any(|index| self.number(table.saturating_add(index * entry), 4) == Self::INTERPRETER)
    }

    /// The little-endian number of `size` bytes; 0 behind the end.
    fn number(&self, at: usize, size: usize) -> usize {
        let bytes = self.0.get(at..at.saturating_add(size)).unwrap_or_default();
        let bytes = bytes.iter().rev();
        bytes.fold(0, |number, byte| number << 8 | usize::from(*byte))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header of a program for `machine` with one program header of type `segment`.
    fn elf(machine: u8, segment: u8) -> Vec<u8> {
        let mut file = vec![0; 120];
        file[..6].copy_from_slice(Elf::IDENTIFICATION);
        (file[18], file[32], file[54], file[56]) = (machine, 64, 56, 1);
        file[64] = segment;
        file
    }

    #[test]
    fn a_static_program_tells_its_architecture() {
        for (machine, architecture) in [(62, Architecture::Amd64), (183, Architecture::Arm64)] {
            let program = StaticProgram::new(elf(machine, 1)).unwrap();
            assert_eq!(program.architecture(), architecture);
        }
    }

    #[test]
    fn what_cannot_run_alone_is_refused() {
        for (file, error) in [
            (b"#!/bin/sh\n".to_vec(), ProgramError::NotElf),
            (Vec::new(), ProgramError::NotElf),
            (elf(40, 1), ProgramError::Machine(40)),
            (elf(62, 3), ProgramError::Dynamic),
        ] {
            assert_eq!(StaticProgram::new(file).unwrap_err(), error);
        }
    }

    #[test]
    fn this_test_itself_is_linked_as_it_was_compiled() {
        let test = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let error = StaticProgram::new(test).err();
        let is_static = cfg!(target_feature = "crt-static");
        assert_eq!(error, (!is_static).then_some(ProgramError::Dynamic));
    }

    #[test]
    fn a_shell_is_linked_dynamically() {
        let shell = std::fs::read("/bin/sh").unwrap();
        let error = StaticProgram::new(shell).unwrap_err();
        assert_eq!(error, ProgramError::Dynamic);
    }
}
