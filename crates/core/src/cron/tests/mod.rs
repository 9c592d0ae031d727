mod cases;
mod play;
mod schedules;
mod simulation;
