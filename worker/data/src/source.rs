//! The tokens or images of a source, in order across its files.

mod counts;

use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use longhaul_common::config::DataSource;

use super::cache::Cache;
use super::filling::{Filling, Preparing};
use super::held_out::HeldOut;
use super::lease::Lease;
use super::lent::{
    BlockName, BlockStore, Catalogue, LentBlock, ListedShard, ListedSource, NotTheBlock, Supply, shard_name,
};
use super::named::Named;
use super::names::Names;
use super::passed::PassedOver;
use super::pipeline::with_makers;
use super::prepared::{ListedPiece, Maker, Prepared};
use super::shard::{BLOCK_BYTES, Head, Shard, blocks_with};
use super::{DataError, Recipe, Tokenizer, Work};

/// Upper bound of shards of a source mapped at once: systems allow a process some 65,000 maps in all.
const MAPPED_MAX: usize = 1 << 13;

/// A source with its shards.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) name: String,
    cache: Cache,
    made: Made,
    /// Its part in the data's hash, if not the shards.
    identity: Option<[u8; 32]>,
    passed: PassedOver,
    /// For data of other workers: the images that they hold out.
    held_out: Option<HeldOut>,
    shards: Vec<Slot>,
    names: Names,
    /// Items (tokens or images) before each shard, then the total.
    starts: Vec<u64>,
    mapped: AtomicUsize,
}

/// Origin of missing shards.
#[derive(Debug)]
enum Made {
    /// They are built from files.
    FromFiles { recipe: Box<Recipe>, tokenizer: Tokenizer, lease: Arc<Lease>, files: Vec<Prepared> },
    /// They are fetched from other workers.
    Elsewhere { stock: Arc<BlockStore>, supply: Arc<dyn Supply> },
}

/// A shard, mapped on demand.
#[derive(Debug)]
struct Slot {
    /// Index of its file.
    file: usize,
    items: u64,
    shard: Mutex<Option<Arc<Shard>>>,
}

impl Slot {
    fn new(file: usize, items: u64) -> Self {
        Self { file, items, shard: Mutex::default() }
    }
}

impl Source {
    /// Creates the source of prepared files.
    pub(super) fn new(
        source: &DataSource,
        recipe: Recipe,
        maker: Maker<'_>,
        files: Vec<Prepared>,
        lease: Arc<Lease>,
    ) -> Self {
        let (mut shards, mut names) = (Vec::new(), Vec::new());
        for (file, prepared) in files.iter().enumerate() {
            for ListedPiece { name, hash, items, .. } in &prepared.list.pieces {
                shards.push(Slot::new(file, *items));
                names.push(Named { name: name.clone(), hash: hash.clone() });
            }
        }
        let (recipe, tokenizer) = (Box::new(recipe), maker.tokenizer.clone());
        let made = Made::FromFiles { recipe, tokenizer, lease, files };
        Self::of(source.to_string(), maker.cache.clone(), made, shards, Names::Known(names))
    }

    /// Creates the source of a folder that is prepared during use.
    pub(super) fn coming(
        source: &DataSource,
        recipe: Recipe,
        maker: Maker<'_>,
        files: Vec<Prepared>,
        lease: Arc<Lease>,
        coming: Preparing,
    ) -> Self {
        let shards = coming.filling().pieces().map(|images| Slot::new(0, images)).collect();
        let (recipe, tokenizer) = (Box::new(recipe), maker.tokenizer.clone());
        let made = Made::FromFiles { recipe, tokenizer, lease, files };
        Self::of(source.to_string(), maker.cache.clone(), made, shards, Names::Coming(coming))
    }

    /// Sets its part in the data's hash.
    pub(super) fn called(self, identity: Option<[u8; 32]>) -> Self {
        Self { identity, ..self }
    }

    /// Sets the files left out of it.
    pub(super) fn beside(self, passed: PassedOver) -> Self {
        Self { passed, ..self }
    }

    /// Creates the source of shards held by other workers.
    pub(super) fn elsewhere(
        source: &DataSource,
        listed: &ListedSource,
        stock: Arc<BlockStore>,
        supply: Arc<dyn Supply>,
    ) -> Result<Self, DataError> {
        let named = |shard: &ListedShard| Named {
            name: shard_name(&shard.hash),
            hash: blake3::Hash::from_bytes(shard.hash).to_hex().to_string(),
        };
        let names = Names::Known(listed.shards.iter().map(named).collect());
        let shards = listed.shards.iter().map(|shard| Slot::new(0, shard.items)).collect();
        let (cache, made) = (stock.cache().clone(), Made::Elsewhere { stock, supply });
        let source = Self::of(source.to_string(), cache, made, shards, names).called(listed.identity);
        let refused = || Catalogue::refused("it holds out images that it does not have");
        let held_out = HeldOut::of_steps(&listed.held_out, source.items()).ok_or_else(refused)?;
        Ok(Self { held_out: Some(held_out), ..source })
    }

    fn of(name: String, cache: Cache, made: Made, shards: Vec<Slot>, names: Names) -> Self {
        let starts = std::iter::once(0)
            .chain(shards.iter().scan(0, |sum, slot| {
                *sum += slot.items;
                Some(*sum)
            }))
            .collect();
        let (identity, passed, held_out) = (None, PassedOver::default(), None);
        let mapped = AtomicUsize::new(0);
        Self { name, cache, made, identity, passed, held_out, shards, names, starts, mapped }
    }

    /// Returns the number of items (tokens or images) of all files.
    pub(super) fn items(&self) -> u64 {
        self.starts.last().copied().unwrap_or_default()
    }

    /// Returns `count` images to hold out, a share of each class; `None`: their classes are unknown.
    pub(super) fn held_out(&self, count: u64) -> Option<HeldOut> {
        self.held_out.clone().or_else(|| self.labels().map(|labels| HeldOut::of_classes(&labels, count)))
    }

    /// Returns the bytes of its shards.
    pub(super) fn bytes(&self) -> u64 {
        let each = self.item_bytes();
        let bytes = |slot: &Slot| Head::bytes_of(slot.items, each) as u64 + slot.items * each as u64;
        self.shards.iter().map(bytes).sum()
    }

    /// Whether its files are here and have records.
    pub(super) fn has_records(&self) -> bool {
        matches!(&self.made, Made::FromFiles { recipe, .. } if recipe.format.has_records())
    }

    /// Hashes the identity of its items.
    pub(super) fn hash_into(&self, hasher: &mut blake3::Hasher) {
        if let Some(identity) = &self.identity {
            hasher.update(identity);
            return;
        }
        hasher.update(&(self.shards.len() as u64).to_le_bytes());
        for index in 0..self.shards.len() {
            hasher.update(self.hash(index).as_bytes());
        }
    }

    /// Returns its catalogue entry for other workers, once it is prepared.
    pub(super) fn listed(&self) -> ListedSource {
        let listed = |(index, slot): (usize, &Slot)| {
            // Lists store such hashes.
            let hash = blake3::Hash::from_hex(self.hash(index)).map_or([0; 32], |hash| *hash.as_bytes());
            ListedShard { hash, items: slot.items }
        };
        let shards = self.shards.iter().enumerate().map(listed).collect();
        ListedSource { identity: self.identity, shards, held_out: Vec::new() }
    }

    /// Returns the preparation in progress; `None`: it was prepared before.
    pub(super) fn filling(&self) -> Option<&Arc<Filling>> {
        match &self.names {
            Names::Coming(coming) => Some(coming.filling()),
            Names::Known(_) => None,
        }
    }

    /// Returns the hash of a shard; empty until it is built.
    fn hash(&self, index: usize) -> &str {
        self.names.get(index).map_or("", |named| &named.hash)
    }

    /// Decodes items about to be read, in parallel, unless they already are.
    pub(super) fn bring(&self, items: Vec<u64>) -> Result<(), DataError> {
        self.filling().map_or(Ok(()), |filling| filling.bring(items))
    }

    /// Whether decoded items stay until they are read.
    pub(super) fn keeps(&self) -> bool {
        self.filling().is_none_or(|filling| filling.keeps())
    }

    /// Returns a block for another worker with the head of its shard; `None`: it is not here.
    pub(super) fn lend(&self, index: usize, block: usize) -> Result<Option<LentBlock>, DataError> {
        let lent = |shard: &Shard| {
            let bytes = shard.block(block).ok()?.to_vec();
            Some(LentBlock { head: shard.head().to_vec(), bytes })
        };
        let found = self.shard(index).ok().flatten().and_then(|shard| lent(&shard));
        match &self.made {
            // A request for a block outside the shard must not trigger a rebuild.
            Made::FromFiles { recipe, .. } if found.is_none() => {
                let blocks = blocks_with(&(0..self.shards[index].items), recipe.item_bytes());
                let made = blocks.contains(&block).then(|| self.replace(index)).transpose()?;
                made.map(|made| lent(&made).ok_or_else(|| self.unreliable(index))).transpose()
            }
            _ => Ok(found),
        }
    }

    fn files(&self) -> &[Prepared] {
        match &self.made {
            Made::FromFiles { files, .. } => files,
            Made::Elsewhere { .. } => &[],
        }
    }

    /// Rebuilds all missing shards, or fetches all blocks.
    pub(super) fn complete(&self) -> Result<(), DataError> {
        self.filling().map_or(Ok(()), |filling| filling.wait())?;
        match &self.made {
            Made::FromFiles { recipe, tokenizer, lease, files } => {
                let work = Work::default();
                let maker = self.maker(tokenizer, recipe, &work);
                with_makers(maker, lease, |makers| {
                    files.iter().try_for_each(|file| maker.complete(file, recipe, makers))
                })
            }
            Made::Elsewhere { .. } => self.verify(|_| ()).map(drop),
        }
    }

    /// Appends the bytes of a range of items, which must be in bounds.
    pub(super) fn read(&self, range: Range<u64>, into: &mut Vec<u8>) -> Result<(), DataError> {
        let before = into.len();
        self.in_shards(range).try_for_each(|(index, range)| self.read_shard(index, range, into))?;
        match &self.made {
            // Blocks were checked, except for images that span two of them.
            Made::Elsewhere { stock, .. } if !stock.items().are_sound(0, &into[before..]) => {
                let reason = NotTheBlock::Items.to_string();
                Err(DataError::NotKept { block: self.name.clone(), reason })
            }
            _ => Ok(()),
        }
    }

    /// Returns the bytes of an item.
    pub(super) fn item_bytes(&self) -> usize {
        match &self.made {
            Made::FromFiles { recipe, .. } => recipe.item_bytes(),
            Made::Elsewhere { stock, .. } => stock.items().bytes,
        }
    }

    /// Announces the read of a range, which must be in bounds, to the operating system, and returns the bytes that may come into memory.
    pub(super) fn expect(&self, range: Range<u64>) -> u64 {
        let expect = |(index, range): (usize, Range<u64>)| match (self.shard(index), &self.made) {
            (Ok(shard), Made::Elsewhere { stock, supply }) => {
                let missing = self.missing(index, shard.as_deref(), &range, stock);
                // Each fetched block is written and hashed as a whole, once for all samples.
                let coming = missing.into_iter().filter(|block| supply.expect(*block)).count();
                (coming * BLOCK_BYTES) as u64 + shard.map_or(0, |shard| shard.expect_sound(range))
            }
            (Ok(Some(shard)), Made::FromFiles { .. }) => shard.expect(range),
            (Ok(None), _) if self.names.get(index).is_none() => {
                (range.end - range.start) * self.item_bytes() as u64
            }
            // The read itself reports the error.
            (Ok(None) | Err(_), _) => 0,
        };
        self.in_shards(range).map(expect).sum()
    }

    /// Returns the missing blocks of a range of a shard.
    fn missing(
        &self,
        index: usize,
        shard: Option<&Shard>,
        range: &Range<u64>,
        stock: &BlockStore,
    ) -> Vec<BlockName> {
        let blocks = match shard {
            Some(shard) => shard.damaged(range.clone()),
            None => blocks_with(range, stock.items().bytes).collect(),
        };
        let shard = blake3::Hash::from_hex(self.hash(index)).map_or([0; 32], |hash| *hash.as_bytes());
        blocks.into_iter().map(|block| BlockName { shard, block: block as u32 }).collect()
    }

    /// Splits a range into shards and the range in each.
    fn in_shards(&self, range: Range<u64>) -> impl Iterator<Item = (usize, Range<u64>)> {
        let first = self.starts.partition_point(|start| *start <= range.start).saturating_sub(1);
        let parts = self.starts.windows(2).enumerate().skip(first);
        parts
            .map_while(move |(index, ends)| {
                let (start, from, to) = (ends[0], ends[0].max(range.start), ends[1].min(range.end));
                (start < range.end).then(|| (index, from - start..to.max(from) - start))
            })
            .filter(|(_, part)| !part.is_empty())
    }

    /// Checks each block of each shard, rebuilds the damaged ones, and returns their number.
    pub(super) fn verify(&self, mut checked: impl FnMut(u64)) -> Result<u64, DataError> {
        self.filling().map_or(Ok(()), |filling| filling.wait())?;
        let mut damaged = 0;
        for index in 0..self.shards.len() {
            let shard = self.place(index).map_or(Ok(None), |path| Shard::map(&path))?;
            let is_sound = |shard: &Shard| self.fits(index, shard) && shard.check_all().is_ok();
            if !shard.as_ref().is_some_and(is_sound) {
                match &self.made {
                    Made::FromFiles { .. } => self.replace(index)?,
                    Made::Elsewhere { stock, supply } => {
                        // The mapping caches earlier checks.
                        self.unmap(index);
                        self.fetch(index, 0..self.shards[index].items, stock, &**supply)?
                    }
                };
                damaged += 1;
            }
            checked(shard.map_or(0, |shard| shard.bytes()));
        }
        Ok(damaged)
    }

    fn read_shard(&self, index: usize, range: Range<u64>, into: &mut Vec<u8>) -> Result<(), DataError> {
        if let Some(filling) = self.filling()
            && self.names.get(index).is_none()
            && filling.read(index, range.clone(), into)?.is_none()
        {
            return Ok(());
        }
        if let Some(shard) = self.shard(index)?
            && let Ok(bytes) = shard.read(range.clone())
        {
            into.extend_from_slice(bytes);
            return Ok(());
        }
        let shard = match &self.made {
            Made::FromFiles { .. } => self.replace(index)?,
            Made::Elsewhere { stock, supply } => self.fetch(index, range.clone(), stock, &**supply)?,
        };
        into.extend_from_slice(shard.read(range).map_err(|_| self.unreliable(index))?);
        Ok(())
    }

    fn unreliable(&self, index: usize) -> DataError {
        DataError::Unreliable { path: self.place(index).unwrap_or_else(|| self.cache.shards()) }
    }

    /// Returns the path of a shard's file; `None`: it is not built yet.
    fn place(&self, index: usize) -> Option<PathBuf> {
        self.names.get(index).map(|named| self.cache.shard(&named.name))
    }

    /// Returns the shard after all blocks of a range are fetched.
    fn fetch(
        &self,
        index: usize,
        range: Range<u64>,
        stock: &BlockStore,
        supply: &dyn Supply,
    ) -> Result<Arc<Shard>, DataError> {
        // If the mapped file was damaged as a whole, the first pass replaces it, and the second fetches the remaining blocks.
        for _ in 0..2 {
            let missing = self.missing(index, self.shard(index)?.as_deref(), &range, stock);
            missing.iter().for_each(|block| _ = supply.expect(*block));
            missing.iter().try_for_each(|block| supply.bring(*block))?;
            match self.shard(index)? {
                Some(shard) if shard.damaged(range.clone()).is_empty() => return Ok(shard),
                _ => self.unmap(index),
            }
        }
        Err(self.unreliable(index))
    }

    /// Returns the mapped shard; `None` if it is missing or its header is damaged.
    fn shard(&self, index: usize) -> Result<Option<Arc<Shard>>, DataError> {
        let mut slot = self.slot(index);
        if slot.is_none() {
            let Some(path) = self.place(index) else { return Ok(None) };
            let shard = Shard::map(&path)?;
            *slot = shard.filter(|shard| self.fits(index, shard)).map(Arc::new);
            if slot.is_some() && self.mapped.fetch_add(1, Ordering::Relaxed) >= MAPPED_MAX {
                self.unmap_another(index);
            }
        }
        Ok(slot.clone())
    }

    fn fits(&self, index: usize, shard: &Shard) -> bool {
        let hash = blake3::Hash::from_bytes(shard.hash()).to_hex();
        shard.len() == self.shards[index].items && hash.as_str() == self.hash(index)
    }

    /// Unmaps a shard, so that it is mapped anew.
    fn unmap(&self, index: usize) {
        if self.slot(index).take().is_some() {
            self.mapped.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Unmaps the next mapped shard that is not in use.
    fn unmap_another(&self, index: usize) {
        let others = (index + 1..self.shards.len()).chain(0..index);
        for other in others {
            if let Ok(mut slot) = self.shards[other].shard.try_lock()
                && slot.take().is_some()
            {
                self.mapped.fetch_sub(1, Ordering::Relaxed);
                return;
            }
        }
    }

    /// Rebuilds a shard.
    fn replace(&self, index: usize) -> Result<Arc<Shard>, DataError> {
        let (work, slot) = (Work::default(), &self.shards[index]);
        let (Made::FromFiles { recipe, tokenizer, files, .. }, Some(Named { name, .. })) =
            (&self.made, self.names.get(index))
        else {
            return Err(self.unreliable(index));
        };
        let file = &files[slot.file].file;
        let made = self.maker(tokenizer, recipe, &work).make_again(file, recipe, name)?;
        if !self.fits(index, &made) {
            return Err(DataError::Changed { path: file.path().to_owned() });
        }
        let made = Arc::new(made);
        if self.slot(index).replace(Arc::clone(&made)).is_none() {
            self.mapped.fetch_add(1, Ordering::Relaxed);
        }
        Ok(made)
    }

    fn slot(&self, index: usize) -> MutexGuard<'_, Option<Arc<Shard>>> {
        self.shards[index].shard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn maker<'a>(&'a self, tokenizer: &'a Tokenizer, recipe: &Recipe, work: &'a Work) -> Maker<'a> {
        Maker { cache: &self.cache, tokenizer, work, piece_bytes: recipe.piece_bytes }
    }
}
