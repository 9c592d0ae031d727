//! The readings under way, each on a thread that may block.
//!
//! A container can make a reading of its file hang, by a lock of the file system or a file system of its own, and nothing ends
//! the thread then. So a reading keeps its place until its thread is done, whoever has given up waiting for it.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leadsman_core::podprobe::CannotProbe;
use leadsman_core::podprobe::node::ProbeKey;
use leadsman_probe::TimeLimit;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Readings at once, each of which is done within a millisecond unless its file system hangs.
const PER_NODE: usize = 8;
/// Readings of one namespace at once, so that its pods alone cannot hold up the others.
const PER_NAMESPACE: usize = 2;

/// Bounds the readings of a node.
pub(super) struct Readings {
    permits: Arc<Semaphore>,
    namespaces: Mutex<HashMap<Arc<str>, NamespaceReadings>>,
}

struct NamespaceReadings {
    permits: Arc<Semaphore>,
    /// The probes whose readings wait or have not ended.
    probes: HashSet<Arc<ProbeKey>>,
}

/// The place of a reading, from its wait for a permit until its thread is done.
struct ReadingPlace {
    readings: Arc<Readings>,
    probe: Arc<ProbeKey>,
    permits: Vec<OwnedSemaphorePermit>,
}

impl Readings {
    pub(super) fn new() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(PER_NODE)),
            namespaces: Mutex::default(),
        }
    }

    /// Reads on a thread, once there is a permit; for both there is the limit. `None` if the reading itself takes too long.
    ///
    /// # Errors
    /// The reading has not begun, since others do not end, or could not be done.
    pub(super) async fn run_reading<T: Send + 'static>(
        self: &Arc<Self>,
        probe: &Arc<ProbeKey>,
        limit: TimeLimit<'_>,
        reading: impl FnOnce() -> Result<T, CannotProbe> + Send + 'static,
    ) -> Result<Option<T>, CannotProbe> {
        let (mut place, of_namespace) = self.take_place(probe)?;
        let permits = async {
            // The namespace's first: who waits for that has none of the node's.
            for permits in [of_namespace, self.permits.clone()] {
                place.permits.extend(permits.acquire_owned().await.ok());
            }
        };
        if limit.await_output(pin!(permits)).await.is_none() {
            return Err(CannotProbe::File(format!(
                "{PER_NAMESPACE} other readings of files of the namespace, or {PER_NODE} of the node, do not end: their file systems hang"
            )));
        }
        let mut task = tokio::task::spawn_blocking(move || {
            let result = reading();
            drop(place);
            result
        });
        match limit.await_output(pin!(&mut task)).await {
            None => Ok(None),
            Some(Ok(result)) => result.map(Some),
            Some(Err(lost)) => Err(CannotProbe::Local(lost.to_string())),
        }
    }

    fn take_place(
        self: &Arc<Self>,
        probe: &Arc<ProbeKey>,
    ) -> Result<(ReadingPlace, Arc<Semaphore>), CannotProbe> {
        let mut namespaces = self.lock_namespaces();
        let of_namespace = namespaces
            .entry(probe.pod.namespace.clone())
            .or_insert_with(|| NamespaceReadings {
                permits: Arc::new(Semaphore::new(PER_NAMESPACE)),
                probes: HashSet::new(),
            });
        if !of_namespace.probes.insert(probe.clone()) {
            let message = "the reading before has not ended: the file system of the volume hangs";
            return Err(CannotProbe::File(message.to_owned()));
        }
        let place = ReadingPlace {
            readings: self.clone(),
            probe: probe.clone(),
            permits: Vec::new(),
        };
        Ok((place, of_namespace.permits.clone()))
    }

    fn lock_namespaces(&self) -> MutexGuard<'_, HashMap<Arc<str>, NamespaceReadings>> {
        let locked = self.namespaces.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ReadingPlace {
    fn drop(&mut self) {
        let namespace = &self.probe.pod.namespace;
        let mut namespaces = self.readings.lock_namespaces();
        // Under the lock: who has got a permit finds the namespace without this reading.
        self.permits.clear();
        if let Some(of_namespace) = namespaces.get_mut(namespace) {
            of_namespace.probes.remove(&self.probe);
            if of_namespace.probes.is_empty() {
                namespaces.remove(namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::sleep;
    use std::time::Duration;

    use futures::future::join_all;

    use super::super::tests::probe;
    use super::*;

    /// How long what hangs is waited for.
    const BRIEF: Duration = Duration::from_millis(50);
    /// The limit of what is to come to its end.
    const AMPLE: Duration = Duration::from_secs(10);

    /// Readings that hang until the sender is dropped.
    fn hang() -> (Sender<()>, impl Fn() -> Hanging) {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        (sender, move || Hanging(receiver.clone()))
    }

    struct Hanging(Arc<Mutex<Receiver<()>>>);

    impl Hanging {
        fn read(&self) {
            let _ended = self.0.lock().unwrap().recv();
        }
    }

    async fn read_hanging(
        readings: &Arc<Readings>,
        probe: &Arc<ProbeKey>,
        hanging: Hanging,
    ) -> Result<Option<()>, CannotProbe> {
        let reading = move || {
            hanging.read();
            Ok(())
        };
        readings.run_reading(probe, BRIEF.into(), reading).await
    }

    async fn read_at_once(
        readings: &Arc<Readings>,
        probe: &Arc<ProbeKey>,
        limit: Duration,
    ) -> Result<Option<u8>, CannotProbe> {
        readings.run_reading(probe, limit.into(), || Ok(7)).await
    }

    fn is_unread(result: &Result<Option<()>, CannotProbe>, why: &str) -> bool {
        matches!(result, Err(CannotProbe::File(message)) if message.contains(why))
    }

    // PRB-30
    #[tokio::test]
    async fn readings_that_hang_in_one_namespace_leave_those_of_others_alone() {
        let readings = Arc::new(Readings::new());
        let (end, hanging) = hang();
        let greedy: Vec<_> = (0..20).map(|number| probe("greedy", number)).collect();
        for _period in 0..3 {
            let runs = greedy
                .iter()
                .map(|probe| read_hanging(&readings, probe, hanging()));
            let _ends = join_all(runs).await;
            assert_eq!(
                readings.permits.available_permits(),
                PER_NODE - PER_NAMESPACE
            );
        }
        for number in 0..20 {
            let read = read_at_once(&readings, &probe("modest", number), AMPLE).await;
            assert_eq!(read, Ok(Some(7)));
        }
        assert_eq!(readings.lock_namespaces().len(), 1);
        drop(end);
        let read = read_at_once(&readings, &probe("greedy", 30), AMPLE).await;
        assert_eq!(read, Ok(Some(7)));
    }

    // PRB-30
    #[tokio::test]
    async fn the_next_run_of_a_probe_whose_reading_hangs_takes_no_permit() {
        let readings = Arc::new(Readings::new());
        let (end, hanging) = hang();
        let one = probe("a", 1);
        assert_eq!(read_hanging(&readings, &one, hanging()).await, Ok(None));
        for _period in 0..3 {
            let again = read_hanging(&readings, &one, hanging()).await;
            assert!(is_unread(&again, "has not ended"), "{again:?}");
            assert_eq!(readings.permits.available_permits(), PER_NODE - 1);
        }
        // Another probe of the namespace has the other permit.
        let other = read_at_once(&readings, &probe("a", 2), AMPLE).await;
        assert_eq!(other, Ok(Some(7)));
        drop(end);
        let _all = readings.permits.acquire_many(8).await.unwrap();
        assert!(readings.lock_namespaces().is_empty());
    }

    // PRB-30
    #[tokio::test]
    async fn a_run_that_waits_for_a_permit_has_not_failed_and_has_its_time_afterwards() {
        let readings = Arc::new(Readings::new());
        let (end, hanging) = hang();
        for number in 0..PER_NODE {
            let probe = probe(&(number / PER_NAMESPACE).to_string(), number);
            assert_eq!(read_hanging(&readings, &probe, hanging()).await, Ok(None));
        }
        let innocent = probe("innocent", 1);
        let waited = read_hanging(&readings, &innocent, hanging()).await;
        assert!(is_unread(&waited, "do not end"), "{waited:?}");
        // Nothing is left of it.
        assert_eq!(
            readings.lock_namespaces().len(),
            PER_NODE.div_ceil(PER_NAMESPACE)
        );
        // Waits for more than half of its limit, and reads for as long.
        let limit = Duration::from_secs(2);
        let slowly = move || {
            sleep(limit * 3 / 5);
            Ok(7)
        };
        let waits = readings.run_reading(&innocent, limit.into(), slowly);
        let ends = async {
            tokio::time::sleep(limit * 3 / 5).await;
            drop(end);
        };
        let (read, ()) = tokio::join!(waits, ends);
        assert_eq!(read, Ok(Some(7)));
    }
}
