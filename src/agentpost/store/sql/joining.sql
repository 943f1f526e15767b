-- name: create_invite
INSERT INTO invites (invite_id, token_hash, tier, expected_node_id, public_key, created_by, created_at_ms,
  expires_at_ms, consumed_at_ms, consumed_by, revoked_at_ms, tailnet_name)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: invite_by_hash
SELECT invite_id, token_hash, tier, expected_node_id, public_key, created_by, created_at_ms, expires_at_ms,
  consumed_at_ms, consumed_by, revoked_at_ms, tailnet_name
FROM invites WHERE token_hash = ?

-- name: invite_by_id
SELECT invite_id, token_hash, tier, expected_node_id, public_key, created_by, created_at_ms, expires_at_ms,
  consumed_at_ms, consumed_by, revoked_at_ms, tailnet_name
FROM invites WHERE invite_id = ?

-- name: latest_invites
SELECT invite_id, token_hash, tier, expected_node_id, public_key, created_by, created_at_ms, expires_at_ms,
  consumed_at_ms, consumed_by, revoked_at_ms, tailnet_name
FROM invites ORDER BY invite_id DESC LIMIT ?

-- name: consume_invite
UPDATE invites SET consumed_at_ms = ?, consumed_by = ? WHERE invite_id = ?

-- name: withdraw_invites
UPDATE invites SET revoked_at_ms = ?
WHERE expected_node_id = ? AND consumed_at_ms IS NULL AND revoked_at_ms IS NULL

-- name: withdraw_invite
UPDATE invites SET revoked_at_ms = ? WHERE invite_id = ? AND consumed_at_ms IS NULL AND revoked_at_ms IS NULL

-- name: known_node
SELECT node_id, signing_public, sealing_public, tier, admitted_by, invite_id, pinned_at_ms, revoked_at_ms
FROM known_nodes WHERE node_id = ?

-- name: known_nodes
SELECT node_id, signing_public, sealing_public, tier, admitted_by, invite_id, pinned_at_ms, revoked_at_ms
FROM known_nodes ORDER BY node_id

-- name: revoked_nodes
SELECT node_id FROM known_nodes WHERE revoked_at_ms IS NOT NULL

-- name: pin_node
INSERT INTO known_nodes (node_id, signing_public, sealing_public, tier, admitted_by, invite_id, pinned_at_ms,
  revoked_at_ms)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (node_id) DO UPDATE SET
  signing_public = excluded.signing_public, sealing_public = excluded.sealing_public, tier = excluded.tier,
  admitted_by = excluded.admitted_by, invite_id = excluded.invite_id, pinned_at_ms = excluded.pinned_at_ms,
  revoked_at_ms = excluded.revoked_at_ms

-- name: revoke_node
UPDATE known_nodes SET revoked_at_ms = ? WHERE node_id = ? AND revoked_at_ms IS NULL
