//! The programs that make and count packets, as they are in this binary.

use std::io;
use std::time::Duration;

use aya::maps::PerCpuArray;
use aya::programs::{ProgramError, SchedClassifier, Xdp};
use aya::{Ebpf, EbpfLoader, TestRun as _, TestRunAttrs, TestRunOptions};

use super::PacketsError;
use super::head::Plan;

/// The object file, at an address that ELF is read at. `cargo xtask bpf` makes it.
static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/packets.bpf.o"));

/// In the kernel.
pub(super) struct Programs {
    ebpf: Ebpf,
}

impl Programs {
    pub(super) fn load(plan: Plan) -> Result<Self, PacketsError> {
        let mut loader = EbpfLoader::new();
        loader.override_global("plan", &plan, true);
        let ebpf = loader.load(OBJECT).map_err(refused)?;
        let mut programs = Self { ebpf };
        programs.xdp("packets_make")?;
        Ok(programs)
    }

    /// Makes so many packets, in batches, and hands them to the device. What it took, by the
    /// kernel's clock: what becomes of a batch on this processor is in it, what it takes to
    /// begin and to end (tens of milliseconds) is not.
    pub(super) fn make(&mut self, frame: &[u8], packets: u32, batch: u32) -> io::Result<Duration> {
        let options = TestRunOptions {
            data_in: Some(frame),
            repeat: packets,
            attrs: TestRunAttrs::new().xdp_live_frames(batch),
            ..TestRunOptions::new()
        };
        let program = self.xdp("packets_make").map_err(io::Error::other)?;
        let made = program.test_run(options).map_err(io::Error::other)?;
        // It gives the time of each, in whole nanoseconds.
        Ok(made.duration.saturating_mul(packets))
    }

    /// How many have come out so far.
    pub(super) fn arrived(&self) -> Result<u64, PacketsError> {
        let failed =
            |source: Box<dyn std::error::Error + Send + Sync>| PacketsError::Read { source };
        let map = self.ebpf.map("arrived").ok_or_else(|| failed("its map is missing".into()))?;
        let map: PerCpuArray<_, u64> = map.try_into().map_err(|error| failed(Box::new(error)))?;
        let values = map.get(&0, 0).map_err(|error| failed(Box::new(error)))?;
        Ok(values.iter().sum())
    }

    /// A program of XDP, loaded.
    pub(super) fn xdp(&mut self, name: &str) -> Result<&mut Xdp, PacketsError> {
        let program: &mut Xdp = self.find(name)?.try_into().map_err(refused)?;
        once(program.load())?;
        Ok(program)
    }

    /// The program for tc, loaded.
    pub(super) fn tc(&mut self, name: &str) -> Result<&mut SchedClassifier, PacketsError> {
        let program: &mut SchedClassifier = self.find(name)?.try_into().map_err(refused)?;
        once(program.load())?;
        Ok(program)
    }

    fn find(&mut self, name: &str) -> Result<&mut aya::programs::Program, PacketsError> {
        let missing = || refused(io::Error::other(format!("{name} is missing; build it anew")));
        self.ebpf.program_mut(name).ok_or_else(missing)
    }
}

/// A program stays loaded.
fn once(loaded: Result<(), ProgramError>) -> Result<(), PacketsError> {
    match loaded {
        Ok(()) | Err(ProgramError::AlreadyLoaded) => Ok(()),
        Err(error) => Err(refused(error)),
    }
}

fn refused(source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> PacketsError {
    PacketsError::Load { source: source.into() }
}
