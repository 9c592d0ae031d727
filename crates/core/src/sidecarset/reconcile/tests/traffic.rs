//! What happens between the feature and its cluster in any history: watches, requests, replies, restarts and time.

use proptest::prelude::*;

use super::world::World;

#[derive(Clone, Debug)]
pub(super) enum Traffic {
    /// The watches show so many changes more.
    Deliver(usize),
    /// A write that is due is sent.
    Send(usize),
    /// A request is carried out; whether its reply arrives.
    CarryOut(usize, bool),
    Refuse(usize),
    /// A request is lost on its way, or a proxy answers it, as with a 404 of its own.
    Lose(usize),
    Restart,
    /// So many seconds.
    Pass(i64),
}

impl Traffic {
    /// How often it happens beside the steps of a history, but for refusals.
    pub(super) const WEIGHT: u32 = 31;

    /// One of the first `places` requests is answered; `refusals` is how often it is refused.
    pub(super) fn any(
        places: usize,
        refusals: u32,
        seconds: &'static [i64],
    ) -> impl Strategy<Value = Self> {
        let has_reply = prop::bool::weighted(0.8);
        prop_oneof![
            6 => (0..6_usize).prop_map(Self::Deliver),
            12 => (0..64_usize).prop_map(Self::Send),
            10 => (0..places, has_reply).prop_map(|(place, reply)| Self::CarryOut(place, reply)),
            refusals => (0..places).prop_map(Self::Refuse),
            1 => (0..places).prop_map(Self::Lose),
            1 => Just(Self::Restart),
            1 => prop::sample::select(seconds).prop_map(Self::Pass),
        ]
    }
}

impl World {
    pub(super) fn happen(&mut self, traffic: &Traffic) {
        match *traffic {
            Traffic::Deliver(count) => self.deliver(count),
            Traffic::Send(choice) => drop(self.send(choice)),
            Traffic::CarryOut(place, has_reply) if place < self.in_flight.len() => {
                self.carry_out(place, has_reply);
            }
            Traffic::Refuse(place) if place < self.in_flight.len() => self.refuse(place),
            Traffic::Lose(place) if place < self.in_flight.len() => self.lose(place),
            Traffic::CarryOut(..) | Traffic::Refuse(_) | Traffic::Lose(_) => {}
            Traffic::Restart => self.restart(),
            Traffic::Pass(seconds) => self.pass(seconds),
        }
    }
}
