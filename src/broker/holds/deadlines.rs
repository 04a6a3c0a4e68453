//! When holds end: a binary heap that knows the place of every key in it, so that a hold that is answered early
//! leaves at once instead of staying as a dead entry until its time.

use super::Key;

const CHILDREN: usize = 4;

/// The heap, smallest deadline first. Of equal deadlines any may come first.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    /// Key and deadline in monotonic microseconds; four children per node, which are neighbours in memory.
    heap: Vec<(Key, u64)>,
    /// Place in the heap, by key; meaningless for keys that are not in it.
    places: Vec<u32>,
}

impl Deadlines {
    pub fn first(&self) -> Option<(Key, u64)> {
        self.heap.first().copied()
    }

    /// Adds a key that is not in the heap.
    pub fn insert(&mut self, key: Key, deadline_us: u64) {
        if self.places.len() <= key as usize {
            self.places.resize(key as usize + 1, 0);
        }
        let place = self.heap.len();
        self.heap.push((key, deadline_us));
        self.places[key as usize] = place as u32;
        self.move_up(place);
    }

    /// Removes a key that is in the heap.
    pub fn remove(&mut self, key: Key) {
        let place = self.places[key as usize] as usize;
        assert_eq!(self.heap[place].0, key, "the place of key {key}");
        self.heap.swap_remove(place);
        if let Some(&(moved, _)) = self.heap.get(place) {
            self.places[moved as usize] = place as u32;
            let place = self.move_up(place);
            self.move_down(place);
        }
    }

    fn move_up(&mut self, mut place: usize) -> usize {
        while place > 0 {
            let parent = (place - 1) / CHILDREN;
            if self.heap[parent].1 <= self.heap[place].1 {
                break;
            }
            self.swap(parent, place);
            place = parent;
        }
        place
    }

    fn move_down(&mut self, mut place: usize) {
        loop {
            let first = place * CHILDREN + 1;
            let children = first..self.heap.len().min(first + CHILDREN);
            let Some(smallest) = children.min_by_key(|&child| self.heap[child].1) else {
                return;
            };
            if self.heap[place].1 <= self.heap[smallest].1 {
                return;
            }
            self.swap(place, smallest);
            place = smallest;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a].0 as usize] = a as u32;
        self.places[self.heap[b].0 as usize] = b as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Against an ordered set, over pseudo-random inserts, removals and expiries.
    #[test]
    fn first_is_always_the_earliest() {
        let mut deadlines = Deadlines::default();
        let mut model: BTreeSet<(u64, Key)> = BTreeSet::new();
        let mut seed = 1_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..20_000 {
            let key = random(200) as Key;
            let known = model.iter().find(|(_, k)| *k == key).copied();
            match known {
                Some(entry) => {
                    deadlines.remove(key);
                    model.remove(&entry);
                }
                None => {
                    let deadline_us = random(50);
                    deadlines.insert(key, deadline_us);
                    model.insert((deadline_us, key));
                }
            }
            let first = deadlines.first().map(|(_, deadline_us)| deadline_us);
            assert_eq!(first, model.first().map(|(deadline_us, _)| *deadline_us));
            assert_eq!(deadlines.heap.len(), model.len());
        }
        while let Some((key, deadline_us)) = deadlines.first() {
            assert!(model.remove(&(deadline_us, key)), "in order, each once");
            deadlines.remove(key);
        }
        assert!(model.is_empty());
    }
}
