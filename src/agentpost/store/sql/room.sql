-- name: append_room_update
INSERT INTO room_log (body) VALUES (?)

-- name: room_updates
SELECT body FROM room_log ORDER BY id

-- name: clear_room
DELETE FROM room_log
