//! Unit attention conditions of one I_T nexus (SAM-5 5.14): a short queue; each is reported once.

use crate::limits::ATTENTIONS_MAX;

/// POWER ON, RESET, OR BUS DEVICE RESET OCCURRED. Not the narrower 29/01 POWER ON OCCURRED: tools (libiscsi's) repeat a
/// command after 29/00 and fail after 29/01.
pub(super) const POWER_ON: (u8, u8) = (0x29, 0x00);
pub(super) const DEVICE_RESET: (u8, u8) = (0x29, 0x03);
pub(super) const INTERNAL_RESET: (u8, u8) = (0x29, 0x04);
pub(super) const NEXUS_LOSS: (u8, u8) = (0x29, 0x07);
pub(super) const MEDIUM_CHANGED: (u8, u8) = (0x28, 0x00);
pub(super) const MODE_CHANGED: (u8, u8) = (0x2a, 0x01);
pub(super) const CAPACITY_CHANGED: (u8, u8) = (0x2a, 0x09);
pub(super) const TASKS_CLEARED: (u8, u8) = (0x2f, 0x00);
pub(super) const LUNS_CHANGED: (u8, u8) = (0x3f, 0x0e);

/// Oldest first, without duplicates, at most [`ATTENTIONS_MAX`].
#[derive(Debug, Default)]
pub(super) struct Attentions {
    codes: [(u8, u8); ATTENTIONS_MAX],
    count: usize,
}

impl Attentions {
    pub(super) fn push(&mut self, code: (u8, u8)) {
        if self.codes[..self.count].contains(&code) {
            return;
        }
        if self.count == ATTENTIONS_MAX {
            self.pop();
        }
        self.codes[self.count] = code;
        self.count += 1;
    }

    pub(super) fn pop(&mut self) -> Option<(u8, u8)> {
        let code = *self.codes[..self.count].first()?;
        self.codes.copy_within(1..self.count, 0);
        self.count -= 1;
        Some(code)
    }

    pub(super) fn remove(&mut self, code: (u8, u8)) {
        if let Some(index) = self.codes[..self.count].iter().position(|known| *known == code) {
            self.codes.copy_within(index + 1..self.count, index);
            self.count -= 1;
        }
    }

    /// A reset supersedes every earlier condition (SAM-5 5.14.3).
    pub(super) fn reset_to(&mut self, code: (u8, u8)) {
        self.count = 0;
        self.push(code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn told_once_in_order_without_repeats() {
        let mut attentions = Attentions::default();
        for code in [POWER_ON, MODE_CHANGED, POWER_ON] {
            attentions.push(code);
        }
        let told = [attentions.pop(), attentions.pop(), attentions.pop()];
        assert_eq!(told, [Some(POWER_ON), Some(MODE_CHANGED), None]);
    }

    #[test]
    fn bounded_oldest_goes() {
        let mut attentions = Attentions::default();
        for ascq in 0..=ATTENTIONS_MAX as u8 {
            attentions.push((0x2a, ascq));
        }
        assert_eq!(attentions.count, ATTENTIONS_MAX);
        assert_eq!(attentions.pop(), Some((0x2a, 1)));
    }
}
