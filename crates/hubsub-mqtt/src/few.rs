//! A map by topic: most clients have one or a few, which need no hash table.

use ahash::RandomState;
use hashbrown::HashMap;

/// The most entries that are searched linearly.
pub(crate) const FEW: usize = 8;

type Many<V> = HashMap<Box<[u8]>, V, RandomState>;

#[derive(Clone, Debug)]
pub(crate) struct Few<V> {
    /// Used up to `FEW` entries; of exact size.
    few: Box<[(Box<[u8]>, V)]>,
    many: Option<Box<Many<V>>>,
}

impl<V> Default for Few<V> {
    fn default() -> Few<V> {
        Few { few: Box::default(), many: None }
    }
}

impl<V> Few<V> {
    pub fn len(&self) -> usize {
        self.many.as_ref().map_or(self.few.len(), |many| many.len())
    }

    /// The values, unless there are many.
    pub fn few(&self) -> Option<impl Iterator<Item = &V>> {
        self.many.is_none().then(|| self.few.iter().map(|(_, value)| value))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        let many = self.many.iter().flat_map(|many| many.iter());
        self.few.iter().map(|(key, value)| (key, value)).chain(many).map(|(key, value)| (&**key, value))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&[u8], &mut V)> {
        let many = self.many.iter_mut().flat_map(|many| many.iter_mut());
        self.few.iter_mut().map(|(key, value)| (&*key, value)).chain(many).map(|(key, value)| (&**key, value))
    }

    #[inline]
    pub fn get(&self, key: &[u8]) -> Option<&V> {
        match &self.many {
            None => self.few.iter().find(|(own, _)| **own == *key).map(|(_, value)| value),
            Some(many) => many.get(key),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, key: &[u8]) -> Option<&mut V> {
        match &mut self.many {
            None => self.few.iter_mut().find(|(own, _)| **own == *key).map(|(_, value)| value),
            Some(many) => many.get_mut(key),
        }
    }

    pub fn insert(&mut self, key: &[u8], value: V) {
        if let Some(known) = self.get_mut(key) {
            *known = value;
        } else if let Some(many) = &mut self.many {
            many.insert(key.into(), value);
        } else {
            let mut few = std::mem::take(&mut self.few).into_vec();
            few.reserve_exact(1);
            few.push((key.into(), value));
            if few.len() <= FEW {
                self.few = few.into();
            } else {
                self.many = Some(Box::new(few.into_iter().collect()));
            }
        }
    }

    /// Removes all entries but those that `keeps` accepts; returns whether there was another.
    pub fn retain(&mut self, keeps: impl Fn(&[u8], &V) -> bool) -> bool {
        let before = self.len();
        match &mut self.many {
            None if self.few.iter().all(|(key, value)| keeps(key, value)) => {}
            None => {
                let mut few = std::mem::take(&mut self.few).into_vec();
                few.retain(|(key, value)| keeps(key, value));
                self.few = few.into();
            }
            Some(many) => many.retain(|key, value| keeps(key, value)),
        }
        self.len() < before
    }

    pub fn remove(&mut self, key: &[u8]) -> bool {
        match &mut self.many {
            None => self.retain(|own, _| own != key),
            Some(many) => many.remove(key).is_some(),
        }
    }
}
