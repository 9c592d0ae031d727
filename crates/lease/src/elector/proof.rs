//! Electors with clocks of their own against an API server that loses, delays and reorders, in simulated time.

use std::collections::VecDeque;

use leadsman_process::clock;
use proptest::prelude::*;

use super::*;

/// The Lease's duration, in seconds and milliseconds.
const SECONDS: u16 = 3;
const LEASE: u64 = 3000;
/// A request that has no answer by then is given up.
const REQUEST_TIMEOUT: u64 = 1000;
/// One tick of the simulation.
const TICK: u64 = 20;
/// How long there are faults.
const FAULTY: u64 = 60_000;

/// The API server.
#[derive(Default)]
struct SimulatedServer {
    lease: Option<Lease>,
    version: u64,
}

/// An elector, its clocks and its connection.
struct SimulatedCandidate {
    elector: Elector,
    /// How far its monotonic clock is ahead.
    ahead: Duration,
    /// The time of day that its clock shows at the start.
    wall: Timestamp,
    stopped_until: u64,
    cut_off_until: u64,
    in_flight: Option<InFlight>,
    /// Requests that were given up and may arrive all the same.
    strays: Vec<(u64, LeaseRequest)>,
    events: VecDeque<(u64, LeaseState)>,
    /// The newest state that it was shown.
    newest: Option<Box<Lease>>,
}

/// A request under way.
struct InFlight {
    gives_up: u64,
    /// The tick at which the request reaches the server; `None` if it is lost.
    arrival: Option<(u64, LeaseRequest)>,
    /// The tick at which the answer is back; `None` if it is lost.
    answer: Option<(u64, LeaseReply)>,
}

struct SimulatedWorld {
    start: Instant,
    now: u64,
    random: fastrand::Rng,
    server: SimulatedServer,
    candidates: Vec<SimulatedCandidate>,
    made: u64,
}

impl SimulatedServer {
    fn carry_out(&mut self, request: LeaseRequest) -> (LeaseReply, bool) {
        let version = self.version.to_string();
        let write = match request {
            LeaseRequest::Get => {
                return (LeaseReply::Read(self.lease.clone().map(Box::new)), false);
            }
            LeaseRequest::Create(_) if self.lease.is_some() => {
                return (LeaseReply::Conflict, false);
            }
            LeaseRequest::Create(lease) => lease,
            LeaseRequest::Replace(lease) if lease.metadata.resource_version == Some(version) => {
                lease
            }
            LeaseRequest::Replace(_) => return (LeaseReply::Conflict, false),
        };
        self.version += 1;
        let mut lease = *write;
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease = Some(lease.clone());
        (LeaseReply::Written(Box::new(lease)), true)
    }
}

impl SimulatedWorld {
    fn new(seed: u64, candidates: usize) -> Self {
        let mut world = Self {
            start: clock::monotonic(),
            now: 0,
            random: fastrand::Rng::with_seed(seed),
            server: SimulatedServer::default(),
            candidates: Vec::new(),
            made: 0,
        };
        for _ in 0..candidates {
            let candidate = world.new_candidate();
            world.candidates.push(candidate);
        }
        world
    }

    fn new_candidate(&mut self) -> SimulatedCandidate {
        self.made += 1;
        let random = fastrand::Rng::with_seed(self.random.u64(..));
        let identity = format!("c{}", self.made);
        let first = self
            .server
            .lease
            .clone()
            .map_or(LeaseState::Absent, |lease| {
                LeaseState::Present(Box::new(lease))
            });
        let delay = self.random.u64(0..300);
        SimulatedCandidate {
            elector: Elector::new("l".to_owned(), identity, SECONDS, random),
            ahead: Duration::from_secs(self.random.u64(0..1_000_000)),
            wall: Timestamp::from_second(self.random.i64(0..4_000_000_000)).unwrap(),
            stopped_until: 0,
            cut_off_until: 0,
            in_flight: None,
            strays: Vec::new(),
            events: [(self.now + delay, first)].into(),
            newest: None,
        }
    }

    /// One of the things that go wrong.
    fn inject_fault(&mut self) {
        let which = self.random.usize(..self.candidates.len());
        let end = self.now + self.random.u64(0..3 * LEASE);
        match self.random.u8(0..9) {
            0..3 => self.candidates[which].stopped_until = end,
            3..6 => self.candidates[which].cut_off_until = end,
            // Killed, and started again.
            6 => self.candidates[which] = self.new_candidate(),
            7 => self.take_by_hand(),
            _ => {
                self.candidates[which].elector.stop_taking();
                self.candidates[which].elector.begin_release();
            }
        }
    }

    /// Somebody names another holder, as `kubectl edit` does.
    fn take_by_hand(&mut self) {
        if let Some(lease) = &self.server.lease {
            let now = Timestamp::UNIX_EPOCH + Duration::from_millis(self.now);
            let lease = record::take_lease(lease, "by-hand", SECONDS, now);
            self.carry_out(LeaseRequest::Replace(Box::new(lease)), true);
        }
    }

    fn advance_time(&mut self, faults: bool) {
        self.now += TICK;
        let now = self.now;
        for which in 0..self.candidates.len() {
            self.serve_arrived(which, faults);
            let candidate = &mut self.candidates[which];
            let at = candidate.clock_at(self.start, now);
            if candidate.stopped_until > now {
                continue;
            }
            candidate.deliver_arrived(at, now);
            let wall = candidate.wall + Duration::from_millis(now);
            match candidate.elector.next_action(at, wall) {
                ElectorAction::Send(request) => self.send_request(which, request, faults),
                ElectorAction::Wait(_) => {}
                ElectorAction::Finished => self.candidates[which] = self.new_candidate(),
            }
        }
    }

    fn send_request(&mut self, which: usize, request: LeaseRequest, faults: bool) {
        let delay = self.random.u64(0..if faults { 1500 } else { 60 });
        let candidate = &mut self.candidates[which];
        let lost = candidate.cut_off_until > self.now || (faults && self.random.u8(0..10) == 0);
        candidate.in_flight = Some(InFlight {
            gives_up: self.now + REQUEST_TIMEOUT,
            arrival: (!lost).then_some((self.now + delay, request)),
            answer: None,
        });
    }

    /// The server carries out what has reached it.
    fn serve_arrived(&mut self, which: usize, faults: bool) {
        let now = self.now;
        let arrived = |(at, _): &mut (u64, LeaseRequest)| *at <= now;
        let strays = &mut self.candidates[which].strays;
        let strays: Vec<_> = strays.extract_if(.., arrived).collect();
        for (_, request) in strays {
            self.carry_out(request, faults);
        }
        let in_flight = self.candidates[which].in_flight.as_mut();
        let Some((_, request)) = in_flight.and_then(|in_flight| in_flight.arrival.take_if(arrived))
        else {
            return;
        };
        let answer = self.carry_out(request, faults);
        let delay = self.random.u64(0..if faults { 700 } else { 60 });
        let lost = faults && self.random.u8(0..10) == 0;
        if let Some(in_flight) = self.candidates[which].in_flight.as_mut() {
            in_flight.answer = (!lost).then_some((now + delay, answer));
        }
    }

    /// Carries out a request, and sends its effect to all watches.
    fn carry_out(&mut self, request: LeaseRequest, faults: bool) -> LeaseReply {
        let (answer, changed) = self.server.carry_out(request);
        for candidate in &mut self.candidates {
            let Some(lease) = self.server.lease.clone().filter(|_| changed) else {
                break;
            };
            let delay = self.random.u64(0..if faults { 900 } else { 60 });
            let after = candidate.events.back().map_or(0, |(at, _)| *at);
            let at = after.max(self.now + delay);
            candidate
                .events
                .push_back((at, LeaseState::Present(Box::new(lease))));
        }
        answer
    }

    /// The identities of the candidates that believe to hold the Lease now, stopped ones included.
    fn believed_leaders(&self) -> Vec<&str> {
        let leads = |candidate: &&SimulatedCandidate| {
            let at = candidate.clock_at(self.start, self.now);
            candidate.elector.leadership_at(at).term_number().is_some()
        };
        let leaders = self.candidates.iter().filter(leads);
        leaders.map(|one| one.elector.identity()).collect()
    }

    /// Lets time pass without faults until somebody leads. Returns how long that took.
    fn quiet_until_led(&mut self) -> u64 {
        let start = self.now;
        while self.believed_leaders().is_empty() && self.now < start + 60_000 {
            self.advance_time(false);
        }
        self.now - start
    }
}

impl SimulatedCandidate {
    fn clock_at(&self, start: Instant, now: u64) -> Instant {
        start + self.ahead + Duration::from_millis(now)
    }

    fn note_shown(&mut self, lease: &Lease) {
        let newest = self.newest.as_ref();
        if newest.is_none_or(|newest| record::is_newer(lease, newest)) {
            self.newest = Some(Box::new(lease.clone()));
        }
    }

    /// Whether it was shown last that it has the Lease, or nobody.
    fn may_lead(&self) -> bool {
        let newest = self.newest.as_ref();
        let holder = newest.and_then(|newest| record::holder_of(newest));
        holder.is_none_or(|holder| holder == self.elector.identity())
    }

    /// Delivers the replies and watch events that have arrived by now.
    fn deliver_arrived(&mut self, at: Instant, now: u64) {
        let cut_off = self.cut_off_until > now;
        while !cut_off && let Some((_, event)) = self.events.pop_front_if(|(when, _)| *when <= now)
        {
            if let LeaseState::Present(lease) = &event {
                self.note_shown(lease);
            }
            self.elector.observe_state(event, at);
        }
        let Some(in_flight) = &mut self.in_flight else {
            return;
        };
        let gives_up = in_flight.gives_up;
        let answer = in_flight
            .answer
            .take_if(|(when, _)| *when <= now && !cut_off);
        if let Some((_, answer)) = answer {
            if let LeaseReply::Written(lease) | LeaseReply::Read(Some(lease)) = &answer {
                self.note_shown(lease);
            }
            self.elector.on_reply(answer, at);
            self.in_flight = None;
        } else if gives_up <= now {
            let in_flight = self.in_flight.as_mut();
            let stray = in_flight.and_then(|in_flight| in_flight.arrival.take());
            self.strays.extend(stray);
            self.elector
                .on_reply(LeaseReply::Failed { retry_after: None }, at);
            self.in_flight = None;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn never_two_and_never_long_none(seed: u64, candidates in 2_usize..4, calm in 20_u64..400) {
        let mut world = SimulatedWorld::new(seed, candidates);
        while world.now < FAULTY {
            if world.random.u64(0..calm) == 0 {
                world.inject_fault();
            }
            world.advance_time(true);
            let leaders = world.believed_leaders();
            prop_assert!(leaders.len() <= 1, "{leaders:?} at {} ms", world.now);
            for candidate in &world.candidates {
                let may_lead = candidate.may_lead() || !leaders.contains(&candidate.elector.identity());
                prop_assert!(may_lead, "{leaders:?} although shown another at {} ms", world.now);
            }
        }
        // All is well again; whoever holds it by its record may be gone.
        for candidate in &mut world.candidates {
            candidate.stopped_until = 0;
            candidate.cut_off_until = 0;
        }
        let took = world.quiet_until_led();
        prop_assert!(took <= 2 * LEASE, "{took} ms without a leader");
        // Every request that was lost or late is over by then, and so is the Lease that was taken
        // by hand last.
        for _ in 0..2 * LEASE / TICK {
            world.advance_time(false);
        }
        // A released Lease is taken without waiting for its end.
        let leader = world.believed_leaders()[0].to_owned();
        let leads = |candidate: &&mut SimulatedCandidate| candidate.elector.identity() == leader;
        if let Some(candidate) = world.candidates.iter_mut().find(leads) {
            candidate.elector.begin_release();
        }
        let took = world.quiet_until_led();
        prop_assert!(took <= REQUEST_TIMEOUT, "{took} ms until a released Lease was taken");
        prop_assert_ne!(world.believed_leaders()[0], leader);
    }
}
