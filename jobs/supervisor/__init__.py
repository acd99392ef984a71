"""The life of a job: settings, attempts, decisions; read main, plan and attempts first."""
