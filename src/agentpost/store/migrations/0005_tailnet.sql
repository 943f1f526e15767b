-- AUTH-7: the name of the tailnet's node that alone may use the invite, where it says so.
ALTER TABLE invites ADD COLUMN tailnet_name TEXT;
