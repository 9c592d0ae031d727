//! The room that the bodies of all requests share.
//!
//! Clients are not authenticated, so whoever reaches the port can send bodies that never end. When room is short, the body
//! that has held its own longest gives way, and those that are complete after all that are still being read: one of these is
//! given up, and a complete request, which waits for a newer state, is answered by what there is. A review that has just come
//! is the youngest, and always finds room.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The room, in bytes.
pub(crate) struct BodyRoom {
    size: usize,
    ledger: Mutex<Ledger>,
    /// Notified when some was returned.
    returned: Notify,
}

#[derive(Default)]
struct Ledger {
    taken: usize,
    /// The part of `taken` whose holders have been asked to give way.
    leaving: usize,
    /// The holders that have not been asked, in the order in which they are: whether the body is complete, and its age.
    holders: BTreeMap<(bool, u64), RoomHolder>,
    next: u64,
}

struct RoomHolder {
    bytes: usize,
    asked: CancellationToken,
}

/// The part of one body, which is returned when this is dropped.
pub(crate) struct HeldRoom<'a> {
    room: &'a BodyRoom,
    key: (bool, u64),
    bytes: usize,
    asked: CancellationToken,
}

/// Another body needs the room of this one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GaveWay;

impl BodyRoom {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            size,
            ledger: Mutex::default(),
            returned: Notify::new(),
        }
    }

    /// Room for a body of which nothing has come yet.
    pub(crate) fn enter(&self) -> HeldRoom<'_> {
        let mut ledger = self.lock_ledger();
        ledger.next += 1;
        HeldRoom {
            room: self,
            key: (false, ledger.next),
            bytes: 0,
            asked: CancellationToken::new(),
        }
    }

    fn lock_ledger(&self) -> MutexGuard<'_, Ledger> {
        // Nothing panics between two changes that belong together.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ledger {
    /// The holder that is asked to give way now, of which one needs more room. That one goes as well, where it is the oldest of
    /// several that are still being read; a single one has all others go first.
    fn next_to_leave(&self, asking: (bool, u64)) -> Option<(bool, u64)> {
        let mut keys = self.holders.keys().copied();
        let (first, second) = (keys.next()?, keys.next());
        let is_single = first == asking && second.is_some_and(|(is_complete, _)| is_complete);
        if is_single { second } else { Some(first) }
    }
}

impl HeldRoom<'_> {
    /// Takes more room. Until there is enough, holders are asked to give way, this one too, if it is its turn.
    ///
    /// One body must be smaller than the room.
    pub(crate) async fn grow(&mut self, bytes: usize) -> Result<(), GaveWay> {
        loop {
            let mut returned = std::pin::pin!(self.room.returned.notified());
            // Enabled before the look, so that nothing that is returned after it is missed.
            returned.as_mut().enable();
            if self.try_grow(bytes) {
                return Ok(());
            }
            tokio::select! {
                // First: whoever has to give way takes no more. Either leads to another look.
                biased;
                () = self.asked.cancelled() => return Err(GaveWay),
                () = returned => {}
            }
        }
    }

    fn try_grow(&mut self, bytes: usize) -> bool {
        let mut ledger = self.room.lock_ledger();
        if self.asked.is_cancelled() {
            return false;
        }
        if ledger.taken + bytes <= self.room.size {
            ledger.taken += bytes;
            self.bytes += bytes;
            let holder = RoomHolder {
                bytes: self.bytes,
                asked: self.asked.clone(),
            };
            ledger.holders.insert(self.key, holder);
            return true;
        }
        while ledger.taken - ledger.leaving + bytes > self.room.size
            && let Some(key) = ledger.next_to_leave(self.key)
            && let Some(holder) = ledger.holders.remove(&key)
        {
            ledger.leaving += holder.bytes;
            holder.asked.cancel();
        }
        false
    }

    /// Notes that the whole body is there.
    pub(crate) fn mark_complete(&mut self) {
        let mut ledger = self.room.lock_ledger();
        let holder = ledger.holders.remove(&self.key);
        self.key.0 = true;
        if let Some(holder) = holder {
            ledger.holders.insert(self.key, holder);
        }
    }

    /// Resolves when another body needs the room of this one.
    pub(crate) async fn asked_to_give_way(&self) {
        self.asked.cancelled().await;
    }
}

impl Drop for HeldRoom<'_> {
    fn drop(&mut self) {
        let mut ledger = self.room.lock_ledger();
        debug_assert!(ledger.taken >= self.bytes, "what is returned was taken");
        ledger.taken -= self.bytes;
        if ledger.holders.remove(&self.key).is_none() {
            // The holder was asked to leave, or had nothing.
            ledger.leaving -= self.bytes;
        }
        drop(ledger);
        self.room.returned.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn the_oldest_body_gives_way_and_no_more_than_are_needed() {
        let room = BodyRoom::new(10);
        let (mut first, mut second, mut third) = (room.enter(), room.enter(), room.enter());
        second.grow(4).await.unwrap();
        first.grow(4).await.unwrap();
        assert!(third.grow(4).now_or_never().is_none(), "it has to wait");
        assert!(first.asked_to_give_way().now_or_never().is_some());
        assert!(third.grow(4).now_or_never().is_none(), "it has to wait");
        assert!(second.asked_to_give_way().now_or_never().is_none());
        // One that was asked gets nothing more.
        assert_eq!(first.grow(1).now_or_never(), Some(Err(GaveWay)));
        drop(first);
        third.grow(4).await.unwrap();
        // Now the second is the oldest, and needs room itself.
        assert_eq!(second.grow(5).now_or_never(), Some(Err(GaveWay)));
        drop((second, third));
        room.enter().grow(10).await.unwrap();
        assert_eq!(room.lock_ledger().leaving, 0);
    }

    #[tokio::test]
    async fn a_complete_body_gives_way_after_those_that_are_still_read() {
        let room = BodyRoom::new(12);
        let (mut complete, mut older, mut newer) = (room.enter(), room.enter(), room.enter());
        complete.grow(4).await.unwrap();
        complete.mark_complete();
        older.grow(4).await.unwrap();
        assert!(newer.grow(8).now_or_never().is_none(), "it has to wait");
        assert!(older.asked_to_give_way().now_or_never().is_some());
        assert!(complete.asked_to_give_way().now_or_never().is_none());
        drop(older);
        newer.grow(8).await.unwrap();
        // The only one that is still read does not go before those that can be answered.
        assert!(newer.grow(4).now_or_never().is_none(), "it has to wait");
        assert!(complete.asked_to_give_way().now_or_never().is_some());
        drop(complete);
        newer.grow(4).await.unwrap();
        drop(newer);
        assert_eq!(room.lock_ledger().leaving, 0);
    }

    #[tokio::test]
    async fn a_body_that_waits_for_room_goes_on_when_some_is_returned() {
        let room = BodyRoom::new(10);
        let (mut first, mut second) = (room.enter(), room.enter());
        first.grow(10).await.unwrap();
        let mut waits = std::pin::pin!(second.grow(1));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(first);
        assert_eq!(waits.await, Ok(()));
    }
}
