//! What a row is held against: the ceilings of the same run, and the share that is the target.

use crate::requester::Figures;

/// What limits a workload besides FUSE itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    /// No target.
    None,
    /// The slower of TCP's stream and the FUSE ceiling.
    Stream { target: f64 },
    /// The FUSE ceiling alone: no request reaches the wire.
    Fuse { target: f64 },
    /// FUSE and one round trip with 4 KiB back.
    PageTrip { target: f64 },
    /// The requester without FUSE, at depth 32.
    Requester { target: f64 },
    /// FUSE and this many round trips of small messages per operation.
    Trips { trips: f64, target: f64 },
}

/// What the wire did in this run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wire {
    pub(crate) stream: f64,
    pub(crate) page_trips: f64,
    pub(crate) small_trips: f64,
    pub(crate) requester: Option<Figures>,
}

impl Bound {
    /// The bound in the row's unit and the share of it to reach. `fuse`: what the FUSE ceiling
    /// did in this row. `None` if something it is made of was not measured.
    pub(crate) fn value(self, fuse: Option<f64>, wire: &Wire) -> Option<(f64, f64)> {
        let after = |trips: f64, rate: f64| fuse.map(|fuse| 1.0 / (1.0 / fuse + trips / rate));
        Some(match self {
            Bound::None => return None,
            Bound::Stream { target } => (fuse?.min(wire.stream), target),
            Bound::Fuse { target } => (fuse?, target),
            Bound::PageTrip { target } => (after(1.0, wire.page_trips)?, target),
            Bound::Requester { target } => (wire.requester?.read_4k_d32_per_s, target),
            Bound::Trips { trips, target } => (after(trips, wire.small_trips)?, target),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_add_up_and_streams_take_the_slower() {
        let wire = Wire {
            stream: 2000.0,
            page_trips: 100.0,
            small_trips: 50.0,
            requester: None,
        };
        let (bound, _) = Bound::PageTrip { target: 0.7 }
            .value(Some(100.0), &wire)
            .unwrap();
        assert!((bound - 50.0).abs() < 1e-9);
        let trips = Bound::Trips {
            trips: 0.5,
            target: 0.7,
        };
        assert!((trips.value(Some(100.0), &wire).unwrap().0 - 50.0).abs() < 1e-9);
        assert_eq!(
            Bound::Stream { target: 0.8 }.value(Some(3000.0), &wire),
            Some((2000.0, 0.8))
        );
        assert_eq!(
            Bound::Requester { target: 0.6 }.value(Some(1.0), &wire),
            None
        );
        assert_eq!(Bound::Fuse { target: 0.9 }.value(None, &wire), None);
    }
}
