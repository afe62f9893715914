//! Fetching the secrets of a generation's masks from the workers that drew them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_common::id::{Generation, WorkerId};
use longhaul_member::SyncEvent;
use longhaul_proto::masking::MASK_SECRET_BYTES;
use tokio::time::{sleep, timeout};

use super::Network;
use super::request::fetch_mask_secret;

/// Timeout before another request; a new connection may take 10 s.
const ANSWER_MAX: Duration = Duration::from_secs(20);
/// Pause before another request to a peer that has not begun the generation, which takes it a fraction of a round trip to the coordinator.
const ASK_AGAIN_PAUSE: Duration = Duration::from_millis(100);

impl Network {
    /// Asks these members for their secrets for this worker, until they answer or another generation's are requested; the answers are
    /// [`SyncEvent::MaskSecret`].
    pub fn fetch_mask_secrets(
        self: &Arc<Self>,
        generation: Generation,
        from: impl Iterator<Item = WorkerId>,
    ) {
        self.masked_generation.store(generation.0, Ordering::Relaxed);
        for peer in from {
            let network = Arc::clone(self);
            self.spawn(async move {
                while network.masked_generation.load(Ordering::Relaxed) == generation.0 {
                    let asked = timeout(ANSWER_MAX, network.fetch_mask_secret(peer, generation)).await;
                    match asked.context("no answer").flatten() {
                        Ok(secret) => {
                            // The synchroniser may have ended.
                            let event = SyncEvent::MaskSecret { generation, from: peer, secret };
                            return drop(network.queue.send(event).await);
                        }
                        Err(error) => {
                            tracing::debug!(%peer, reason = format!("{error:#}"), "no secret for masks yet");
                        }
                    }
                    sleep(ASK_AGAIN_PAUSE).await;
                }
            });
        }
    }

    async fn fetch_mask_secret(
        &self,
        from: WorkerId,
        generation: Generation,
    ) -> Result<[u8; MASK_SECRET_BYTES]> {
        let peer = self.lock().peers.get(&from).cloned().context("no member of this generation")?;
        let connection = peer.connection(self).await?;
        fetch_mask_secret(connection.connection(), generation).await
    }
}
