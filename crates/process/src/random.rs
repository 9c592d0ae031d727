//! The randomness of a process. Everywhere else random numbers come from a generator that was handed over, so that one
//! number fixes all that a process does by chance.

use std::sync::{Arc, Mutex, PoisonError};

use fastrand::Rng;

/// The source of all generators of a process. Clones share it.
#[derive(Clone, Debug)]
pub struct RandomSource(Arc<Mutex<Rng>>);

impl RandomSource {
    /// A source that no other process has.
    #[expect(
        clippy::disallowed_methods,
        reason = "the lint refers everybody to this function"
    )]
    pub fn from_entropy() -> Self {
        Self::of_rng(Rng::new())
    }

    /// A source whose generators are the same each time that they are taken in the same order.
    pub fn from_seed(seed: u64) -> Self {
        Self::of_rng(Rng::with_seed(seed))
    }

    fn of_rng(rng: Rng) -> Self {
        Self(Arc::new(Mutex::new(rng)))
    }

    /// A generator for one task.
    pub fn fork_rng(&self) -> Rng {
        let mut source = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        source.fork()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_generators_in_the_same_order_and_none_of_them_twice() {
        let numbers = |source: RandomSource| {
            let clone = source.clone();
            [source, clone].map(|source| source.fork_rng().u64(..))
        };
        let of_seed = numbers(RandomSource::from_seed(7));
        assert_eq!(of_seed, numbers(RandomSource::from_seed(7)));
        assert_ne!(of_seed[0], of_seed[1]);
        assert_ne!(of_seed, numbers(RandomSource::from_entropy()));
    }
}
