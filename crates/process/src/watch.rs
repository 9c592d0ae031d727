//! The channel of a latest value, as tokio's, but its receivers are woken in the order in which they began to wait.
//!
//! tokio spreads waiting receivers over eight lists by a random number that only `tokio_unstable` lets one choose
//! (`BigNotify` in its `src/sync/watch.rs`). With it, a simulation would tell two stories of one seed. No channel here is so busy that the
//! eight lists would pay.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use futures::FutureExt;
use tokio::sync::Notify;
use tokio::sync::watch;
pub use tokio::sync::watch::Ref;
use tokio::sync::watch::error::{RecvError, SendError};
use tokio::task::coop::unconstrained;

/// The sending half. Clones send to the same receivers.
#[derive(Debug)]
pub struct Sender<T> {
    value: watch::Sender<T>,
    // Dropped after the value: who is woken by the end finds the channel closed.
    waiting: WakeAtEnd,
}

/// The receiving half. A clone has seen what the original has seen.
#[derive(Clone, Debug)]
pub struct Receiver<T> {
    value: watch::Receiver<T>,
    waiting: Arc<Notify>,
}

#[derive(Clone, Debug, Default)]
struct WakeAtEnd(Arc<Notify>);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

/// A channel with its first value.
pub fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> Sender<T> {
    /// A channel without a receiver.
    pub fn new(value: T) -> Self {
        Self {
            value: watch::Sender::new(value),
            waiting: WakeAtEnd::default(),
        }
    }

    /// A receiver that has seen the current value.
    pub fn subscribe(&self) -> Receiver<T> {
        Receiver {
            value: self.value.subscribe(),
            waiting: Arc::clone(&self.waiting.0),
        }
    }

    /// Replaces the value if there is a receiver.
    ///
    /// # Errors
    /// There is none.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let sent = self.value.send(value);
        self.waiting.0.notify_waiters();
        sent
    }

    /// Replaces the value, and returns the former one.
    pub fn send_replace(&self, value: T) -> T {
        let former = self.value.send_replace(value);
        self.waiting.0.notify_waiters();
        former
    }

    /// Changes the value.
    pub fn send_modify(&self, modify: impl FnOnce(&mut T)) {
        self.value.send_modify(modify);
        self.waiting.0.notify_waiters();
    }

    /// Changes the value, and wakes the receivers if the change says so.
    pub fn send_if_modified(&self, modify: impl FnOnce(&mut T) -> bool) -> bool {
        let is_modified = self.value.send_if_modified(modify);
        if is_modified {
            self.waiting.0.notify_waiters();
        }
        is_modified
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            value: self.value.clone(),
            waiting: self.waiting.clone(),
        }
    }
}

impl<T: Default> Default for Sender<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Deref for Sender<T> {
    type Target = watch::Sender<T>;

    fn deref(&self) -> &Self::Target {
        &self.value
    }
}

impl<T> Receiver<T> {
    /// Waits for a value that was not seen, and marks it as seen.
    ///
    /// # Errors
    /// The sender is gone, and its last value was seen.
    pub async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            // `notified` counts the changes from here on.
            let woken = self.waiting.notified();
            // The budget of tokio is left out: its end would read as "no change".
            if let Some(changed) = unconstrained(self.value.changed()).now_or_never() {
                return changed;
            }
            woken.await;
        }
    }

    /// Waits for a value of which something holds; the current one is the first that is asked about.
    ///
    /// # Errors
    /// The sender is gone, and this does not hold of its last value.
    pub async fn wait_for(
        &mut self,
        mut holds: impl FnMut(&T) -> bool,
    ) -> Result<Ref<'_, T>, RecvError> {
        let mut is_open = Ok(());
        while !holds(&self.value.borrow_and_update()) {
            is_open?;
            is_open = self.changed().await;
        }
        Ok(self.value.borrow())
    }
}

impl<T> Deref for Receiver<T> {
    type Target = watch::Receiver<T>;

    fn deref(&self) -> &Self::Target {
        &self.value
    }
}

impl<T> DerefMut for Receiver<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn receivers_are_woken_in_the_order_in_which_they_began_to_wait() {
        let (sender, receiver) = channel(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..16)
            .map(|number| {
                let (mut receiver, order) = (receiver.clone(), Arc::clone(&order));
                tokio::spawn(async move {
                    receiver.wait_for(|value| *value == 2).await.unwrap();
                    order.lock().unwrap().push(number);
                    receiver.changed().await.unwrap_err();
                })
            })
            .collect();
        for value in 0..=2 {
            tokio::task::yield_now().await;
            sender.send_replace(value);
        }
        tokio::task::yield_now().await;
        assert!(order.lock().unwrap().iter().copied().eq(0..16));
        drop(sender);
        for task in tasks {
            task.await.unwrap();
        }
    }
}
